"""Label-smoothed cross-entropy with the RBN penalty."""

from dataclasses import dataclass
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import nn

from rbn_fairseq.criterions.cross_entropy_rbn import LossOfModel
from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig

__all__ = ["LabelSmoothedCrossEntropyRBN"]


@dataclass
class LabelSmoothedCrossEntropyRBNConfig(
    RBNPenaltyConfig, LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of the cross-entropy and of the penalty."""


@register_criterion(
    "label_smoothed_cross_entropy_rbn", dataclass=LabelSmoothedCrossEntropyRBNConfig
)
class LabelSmoothedCrossEntropyRBN(RBNPenalty, LossOfModel, LabelSmoothedCrossEntropyCriterion):
    """fairseq's label-smoothed cross-entropy plus the penalty (paper, Section 4.1)."""

    def get_lprobs_and_target(self, model: nn.Module, net_output: Any, sample: Any) -> Any:
        """As fairseq's, which cuts off columns for ``--ignore-prefix-size``: rows have none."""
        lprobs = model.get_normalized_probs(net_output, log_probs=True)
        target = model.get_targets(sample, net_output)
        return lprobs.view(-1, lprobs.size(-1)), target.view(-1)
