"""The Transformer for sequence tagging, with a choice of norms."""

from typing import NamedTuple, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import Linear
from torch import Tensor
from torch.func import functional_call
from torchcrf import CRF

from rbn_fairseq.models.config import RBNConfig
from rbn_fairseq.models.encoder import RBNTransformerEncoder
from rbn_fairseq.models.encoding import EncodingModel
from rbn_fairseq.models.kinds import TAGGER
from rbn_fairseq.models.rbn_model import register

__all__ = ["RBNTransformerTagger", "Tagging"]

_FIRST = Dictionary().unk()  # in the dictionary: fairseq's types before it are no tags


class Tagging(NamedTuple):
    """Output of a tagger.

    Attributes:
        emissions: scores of each token's tags, ``(B, T, tags)``, 0 or of ``</s>`` at padding.
        real: mask of tokens that have a tag, ``(B, T)``.
        nll: negative log-likelihood of each text's tags, in nats, ``(B,)``; ``None`` where no
            tags were given.
    """

    emissions: Tensor
    real: Tensor
    nll: Optional[Tensor]


@register(TAGGER)
class RBNTransformerTagger(EncodingModel):
    """A Transformer encoder, one linear layer, and a linear-chain conditional random field.

    A text ends with ``</s>``, which is encoded and has no tag. Tags are the labels of the
    dictionary, and ``<unk>`` for one that is not in it.
    """

    def __init__(self, cfg: RBNConfig, encoder: RBNTransformerEncoder, labels: int) -> None:
        super().__init__(cfg, encoder, labels)
        self.output_projection = Linear(cfg.encoder.embed_dim, labels - _FIRST)
        self.crf = CRF(labels - _FIRST, batch_first=True)

    @classmethod
    def count_labels(cls, state_dict: dict[str, Tensor]) -> int:
        """Return the size of the dictionary of labels that weights belong to."""
        return len(state_dict["output_projection.weight"]) + _FIRST

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        tags: Optional[Tensor] = None,
    ) -> Tagging:
        """Score the tags of texts; with ``tags``, also compute the loss.

        Args:
            src_tokens: ``(B, T + 1)``, ``</s>`` behind each text, padding behind that.
            src_lengths: as fairseq's; not read.
            tags: of the tokens, by their numbers in the dictionary, ``(B, T)``.
        """
        rows, layout = self.encode(src_tokens)
        emissions = layout.unpack(self.output_projection(rows))[:, :-1]  # (B, T, tags)
        # Sums over a text in half precision would lose its tags.
        emissions = emissions.to(torch.promote_types(emissions.dtype, torch.float32))
        real = src_tokens[:, 1:].ne(self.encoder.padding_idx)
        if tags is None:
            return Tagging(emissions, real, None)
        # Here rather than in the criterion: a process's gradients of weights that are used outside
        # the forward are not always added to the others'.
        weights = {name: weight.to(emissions.dtype) for name, weight in self.crf.named_parameters()}
        numbers = (tags - _FIRST).where(real, 0)
        given = (emissions, numbers, real)
        return Tagging(
            emissions, real, -functional_call(self.crf, weights, given, {"reduction": "none"})
        )

    def decode(self, tagging: Tagging) -> list[list[int]]:
        """Return each text's likeliest tags (Viterbi), by their numbers in the dictionary."""
        best = self.crf.decode(tagging.emissions, tagging.real)
        return [[number + _FIRST for number in numbers] for numbers in best]

    def nll(self, sample: dict[str, Tensor], padding: int) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of a batch, summed, in nats, and of how many tags."""
        output = self(**sample["net_input"], tags=sample["target"])
        return output.nll.double().sum(), output.real.sum()
