"""Criterions with the RBN penalty."""

import fairseq  # noqa: F401 - which registers this and its sister packages

from rbn_fairseq.criterions.adaptive_loss_rbn import AdaptiveLossRBN
from rbn_fairseq.criterions.classification_rbn import ClassificationRBN
from rbn_fairseq.criterions.crf_rbn import CRFRBN
from rbn_fairseq.criterions.cross_entropy_rbn import CrossEntropyRBN
from rbn_fairseq.criterions.label_smoothed_cross_entropy_rbn import LabelSmoothedCrossEntropyRBN
from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig

__all__ = [
    "AdaptiveLossRBN", "ClassificationRBN", "CrossEntropyRBN", "LabelSmoothedCrossEntropyRBN",
    "RBNPenalty", "RBNPenaltyConfig", "CRFRBN",
]  # fmt: skip
