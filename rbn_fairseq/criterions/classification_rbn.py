"""Cross-entropy of texts' classes, with the RBN penalty."""

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig, totals

__all__ = ["ClassificationRBN"]


class _Classification(FairseqCriterion):
    """Cross-entropy of the class of each text, and how often the likeliest class is the right one.

    The loss is logged in bits per text, ``accuracy`` in per cent.
    """

    sentence_avg = True  # the sample size is the number of texts

    def forward(self, model: Any, sample: Any, reduce: bool = True) -> Any:
        """Compute the loss in nats, summed over texts or, without ``reduce``, of each: ``(B,)``."""
        output = model(**sample["net_input"])
        target = model.get_targets(sample, output)
        logs = model.get_normalized_probs(output, log_probs=True)  # (B, classes)
        loss = F.nll_loss(logs, target, reduction="sum" if reduce else "none")
        texts = len(target)
        log = {
            "loss": loss.detach(),
            "correct": logs.argmax(1).eq(target).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": texts,
            "sample_size": texts,
        }
        return loss, texts, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Log the mean loss and the accuracy over the texts of all processes."""
        loss, correct, texts = totals(logging_outputs, "loss", "correct", "sample_size")
        metrics.log_scalar("loss", loss / texts / math.log(2), texts, round=3)
        metrics.log_scalar("accuracy", 100 * correct / texts, texts, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return that processes may add up their logs."""
        return True


@register_criterion("classification_rbn", dataclass=RBNPenaltyConfig)
class ClassificationRBN(RBNPenalty, _Classification):
    """Cross-entropy plus the penalty (paper, Section 4.1)."""
