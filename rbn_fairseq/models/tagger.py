"""The Transformer for sequence tagging, with a choice of norms."""

from typing import NamedTuple, Optional

import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.func import functional_call

from rbn_fairseq.models.config import RBNConfig
from rbn_fairseq.models.encoder import RBNTransformerEncoder
from rbn_fairseq.models.encoding import EncodingModel
from rbn_fairseq.models.kinds import TAGGER
from rbn_fairseq.models.rbn_model import register

__all__ = ["RBNTransformerTagger", "Tagging"]


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

    first_label = Dictionary().unk()

    def __init__(self, cfg: RBNConfig, encoder: RBNTransformerEncoder, labels: int) -> None:
        super().__init__(cfg, encoder, labels)
        from torchcrf import CRF  # which the norms alone do without

        self.crf = CRF(labels - self.first_label, batch_first=True)

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
        numbers = (tags - self.first_label).where(real, 0)
        given = (emissions, numbers, real)
        nll = -functional_call(self.crf, weights, given, {"reduction": "none"})
        # Texts of one token have no transitions, and DistributedDataParallel wants their gradient.
        return Tagging(emissions, real, nll + 0 * weights["transitions"].sum())

    def decode(self, tagging: Tagging) -> list[list[int]]:
        """Return each text's likeliest tags (Viterbi), by their numbers in the dictionary."""
        best = self.crf.decode(tagging.emissions, tagging.real)
        return [[number + self.first_label for number in numbers] for numbers in best]

    def nll(self, sample: dict[str, Tensor], padding: int) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of a batch, summed, in nats, and of how many tags."""
        output = self(**sample["net_input"], tags=sample["target"])
        return output.nll.double().sum(), output.real.sum()
