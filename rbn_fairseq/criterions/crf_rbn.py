"""Loss and entity F1 of sequence tagging, with the RBN penalty."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics
from omegaconf import II

from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig, log_loss, totals

__all__ = ["CRFRBN", "entities"]

_COUNTS = ("_correct", "_predicted", "_gold")  # fairseq prints no metric with such a name


def entities(tags: list[list[str]]) -> set[tuple[str, int, int]]:
    """Return the entities that seqeval finds in texts: type, first and last token."""
    from seqeval.metrics.sequence_labeling import get_entities  # seconds, for scikit-learn

    with warnings.catch_warnings():  # of `M-` tags, which it reads as it should
        warnings.simplefilter("ignore")
        return set(get_entities(tags))


def _ratio(above: str, *below: str) -> Any:
    """Return a metric in per cent, ``above`` of the mean of ``below``; 0 where there is none."""

    def compute(meters: Any) -> float:
        total = sum(meters[name].sum for name in below) / len(below)
        # Sums over several processes are tensors.
        return round(float(100 * meters[above].sum / total), 3) if total else 0.0

    return compute


class _Tagging(FairseqCriterion):
    """Negative log-likelihood of the tags; in validation, precision, recall and F1 of entities.

    ``nll_loss`` is logged in bits per tag; ``loss``, too, with ``--sentence-avg`` in bits per text.
    Entities are those that seqeval finds, for which ``<unk>`` is outside of any,
    and are counted over the whole validation set; scores are in per cent.
    """

    def __init__(self, task: Any, sentence_avg: bool) -> None:
        super().__init__(task)
        self.sentence_avg = sentence_avg
        tags = task.target_dictionary
        self._tags = ["O" if tag == tags.unk_word else tag for tag in tags.symbols]

    def forward(self, model: Any, sample: Any, reduce: bool = True) -> Any:
        """Compute the loss in nats, summed over texts or, without ``reduce``, of each: ``(B,)``."""
        target = sample["target"]
        output = model(**sample["net_input"], tags=target)
        loss = output.nll.sum() if reduce else output.nll
        size = len(target) if self.sentence_avg else sample["ntokens"]
        log = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": len(target),
            "sample_size": size,
        }
        if not self.training:
            log.update(self._count(model.decode(output), target.tolist()))
        return loss, size, log

    def _count(self, best: list[list[int]], target: list[list[int]]) -> dict[str, int]:
        gold = [numbers[: len(text)] for numbers, text in zip(target, best, strict=True)]
        guess, truth = (
            entities([[self._tags[number] for number in text] for text in texts])
            for texts in (best, gold)
        )
        return dict(zip(_COUNTS, map(len, (guess & truth, guess, truth)), strict=True))

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Log the mean loss over tags, and the scores of all entities so far."""
        log_loss(logging_outputs)
        if not any(_COUNTS[0] in log for log in logging_outputs):
            return
        # Sums, of which the scores are made whenever they are read: a mean of batches' scores would
        # be another number.
        for name, total in zip(_COUNTS, totals(logging_outputs, *_COUNTS), strict=True):
            metrics.log_scalar_sum(name, total)
        correct, predicted, gold = _COUNTS
        metrics.log_derived("precision", _ratio(correct, predicted))
        metrics.log_derived("recall", _ratio(correct, gold))
        metrics.log_derived("f1", _ratio(correct, predicted, gold))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return that processes may add up their logs."""
        return True


@dataclass
class CRFRBNConfig(RBNPenaltyConfig):
    """Options of the loss and of the penalty."""

    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("crf_rbn", dataclass=CRFRBNConfig)
class CRFRBN(RBNPenalty, _Tagging):
    """Loss of the tagger's conditional random field plus the penalty (paper, Section 4.1)."""
