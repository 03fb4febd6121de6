"""The Transformer for text classification, with a choice of norms."""

from typing import Any, Optional

from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor

from rbn_fairseq.models.encoding import EncodingModel
from rbn_fairseq.models.kinds import CLASSIFIER
from rbn_fairseq.models.rbn_model import register

__all__ = ["RBNTransformerClassifier"]


@register(CLASSIFIER)
class RBNTransformerClassifier(EncodingModel):
    """A Transformer encoder and one linear layer, which reads the output at each text's start.

    The task puts ``<s>`` in front of every text. Classes are the labels of the dictionary, counted
    from 0; fairseq's special types are none.
    """

    first_label = Dictionary().nspecial

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        **unread: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Classify texts.

        Args:
            src_tokens: ``(B, S)``, padded on either side; a text has one token at least.
            src_lengths: as fairseq's; not read.
            features_only: return the encoder's output at the texts' first tokens, ``(B, C)``.
            **unread: further inputs of fairseq's batches.

        Returns:
            Logits ``(B, classes)`` and an empty dictionary.
        """
        rows, layout = self.encode(src_tokens)
        assert layout.index is not None
        first = layout.lengths.cumsum(0) - layout.lengths  # (B,): rows, texts sorted by length
        texts = layout.index[first] // src_tokens.shape[1]  # (B,): their places in the batch
        x = rows.new_zeros(len(src_tokens), rows.shape[1]).index_copy(0, texts, rows[first])
        return x if features_only else self.output_projection(x), {}

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Any]] = None
    ) -> Tensor:
        """Return the probabilities of classes, ``(B, classes)``, or their logarithms."""
        softmax = utils.log_softmax if log_probs else utils.softmax
        return softmax(net_output[0], dim=-1)  # at least fp32

    def get_targets(self, sample: dict[str, Any], net_output: Any) -> Tensor:
        """Return the texts' classes, ``(B,)``, counted from 0."""
        return sample["target"].squeeze(1) - self.first_label

    def nll(self, sample: dict[str, Any], padding: int) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of a batch, summed, in nats, and of how many texts."""
        return super().nll(sample, -1)  # every text has a class, whatever number padding has
