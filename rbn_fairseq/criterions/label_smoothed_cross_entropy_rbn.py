"""Label-smoothed cross-entropy with the RBN penalty."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)

from rbn_fairseq.criterions.options import RBNPenaltyConfig
from rbn_fairseq.criterions.penalty import RBNPenalty

__all__ = ["LabelSmoothedCrossEntropyRBN"]


@dataclass
class LabelSmoothedCrossEntropyRBNConfig(
    RBNPenaltyConfig, LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of the cross-entropy and of the penalty."""


@register_criterion(
    "label_smoothed_cross_entropy_rbn", dataclass=LabelSmoothedCrossEntropyRBNConfig
)
class LabelSmoothedCrossEntropyRBN(RBNPenalty, LabelSmoothedCrossEntropyCriterion):
    """fairseq's label-smoothed cross-entropy plus the penalty (paper, Section 4.1)."""
