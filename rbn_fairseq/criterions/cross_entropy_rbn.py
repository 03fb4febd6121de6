"""Cross-entropy with the RBN penalty."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig

from rbn_fairseq.criterions.model_loss import LossOfModel
from rbn_fairseq.criterions.options import RBNPenaltyConfig
from rbn_fairseq.criterions.penalty import RBNPenalty

__all__ = ["CrossEntropyRBN"]


@dataclass
class CrossEntropyRBNConfig(RBNPenaltyConfig, CrossEntropyCriterionConfig):
    """Options of the cross-entropy and of the penalty."""


@register_criterion("cross_entropy_rbn", dataclass=CrossEntropyRBNConfig)
class CrossEntropyRBN(RBNPenalty, LossOfModel, CrossEntropyCriterion):
    """fairseq's cross-entropy plus the penalty (paper, Section 4.1)."""
