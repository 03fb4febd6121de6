"""Label-smoothed cross-entropy with the RBN penalty."""

from dataclasses import dataclass
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import nn

from rbn_fairseq.criterions.options import RBNPenaltyConfig
from rbn_fairseq.criterions.penalty import RBNPenalty
from rbn_fairseq.models.loss import Loss, Wanted

__all__ = ["LabelSmoothedCrossEntropyRBN"]


@dataclass
class LabelSmoothedCrossEntropyRBNConfig(
    RBNPenaltyConfig, LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of the cross-entropy and of the penalty."""


class _LossOfModel(LabelSmoothedCrossEntropyCriterion):
    """fairseq's criterion, whose sum the model computes where it can: without logits."""

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
        return super().forward(model, sample, reduce)

    def get_lprobs_and_target(self, model: nn.Module, net_output: Any, sample: Any) -> Any:
        """As fairseq's, which cuts off columns for ``--ignore-prefix-size``: rows have none."""
        lprobs = model.get_normalized_probs(net_output, log_probs=True)
        target = model.get_targets(sample, net_output)
        return lprobs.view(-1, lprobs.size(-1)), target.view(-1)

    def compute_loss(
        self, model: nn.Module, net_output: Any, sample: Any, reduce: bool = True
    ) -> Any:
        """Take the model's loss and nll, or compute them from its logits."""
        if isinstance(net_output, Loss):
            return net_output.loss, net_output.nll
        return super().compute_loss(model, net_output, sample, reduce)


@register_criterion(
    "label_smoothed_cross_entropy_rbn", dataclass=LabelSmoothedCrossEntropyRBNConfig
)
class LabelSmoothedCrossEntropyRBN(RBNPenalty, _LossOfModel):
    """fairseq's label-smoothed cross-entropy plus the penalty (paper, Section 4.1)."""
