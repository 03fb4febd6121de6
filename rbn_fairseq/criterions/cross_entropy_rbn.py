"""Cross-entropy with the RBN penalty, which the model computes itself where it can."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.logging import metrics
from torch import nn

from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig, log_loss
from rbn_fairseq.models.loss import Loss, Wanted

__all__ = ["CrossEntropyRBN", "LossOfModel", "PerplexityOfTokens"]


class PerplexityOfTokens:
    """Mixin of one of fairseq's criterions, whose perplexity is that of tokens.

    With ``--sentence-avg`` fairseq takes that of sentences for good where the first batch has as
    many tokens as sentences.
    """

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Log the mean loss of sentences or tokens, and that and the perplexity of tokens."""
        log_loss(logging_outputs)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))


class LossOfModel:
    """Mixin of one of fairseq's criterions of cross-entropy, whose sum the model computes.

    Its attributes are those that only label-smoothed cross-entropy sets, by their defaults.
    """

    padding_idx: int
    eps = 0.0
    report_accuracy = False
    ignore_prefix_size = 0

    def forward(self, model: nn.Module, sample: Any, reduce: bool = True) -> Any:
        """As fairseq's; the tokens of ``--ignore-prefix-size`` have no target."""
        tokens = sample["ntokens"]
        if self.ignore_prefix_size:
            target = sample["target"].clone()
            target[:, : self.ignore_prefix_size] = self.padding_idx
            sample, tokens = {**sample, "target": target}, None
        if reduce and not self.report_accuracy and getattr(model, "gives_loss", False):
            wanted = Wanted(sample["target"], self.padding_idx, self.eps, tokens)
            sample = {**sample, "net_input": {**sample["net_input"], "wanted": wanted}}
        return super().forward(model, sample, reduce)  # type: ignore[misc]

    def compute_loss(
        self, model: nn.Module, net_output: Any, sample: Any, reduce: bool = True
    ) -> Any:
        """Take the model's loss and nll, or compute them from its logits."""
        if isinstance(net_output, Loss):
            return net_output.loss, net_output.nll
        return super().compute_loss(model, net_output, sample, reduce)  # type: ignore[misc]


@dataclass
class CrossEntropyRBNConfig(RBNPenaltyConfig, CrossEntropyCriterionConfig):
    """Options of the cross-entropy and of the penalty."""


@register_criterion("cross_entropy_rbn", dataclass=CrossEntropyRBNConfig)
class CrossEntropyRBN(RBNPenalty, PerplexityOfTokens, LossOfModel, CrossEntropyCriterion):
    """fairseq's cross-entropy plus the penalty (paper, Section 4.1)."""
