"""Training batches that draw their sentences from several length buckets."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.tasks.batching import mix_lengths, padding

__all__ = ["LengthMixingConfig", "LengthMixingTask", "bucketed_batches", "mix"]

logger = logging.getLogger(__name__)


@dataclass
class LengthMixingConfig(FairseqDataclass):
    """Options of length mixing."""

    length_mixing: int = field(
        default=1,
        metadata={
            "help": "draw every training batch from so many random length buckets, at the same "
            "number of real tokens a batch (so that padding, and memory, grow); 1 = fairseq's "
            "batches of sentences of like length"
        },
    )
    # Known elsewhere; without a help text they do not become options.
    curriculum: int = II("dataset.curriculum")


class _Mixed:
    """Composes the batches of an epoch; what fairseq's iterator takes in place of batches."""

    def __init__(self, bucketed: Sequence[Any], buckets: int, seed: int) -> None:
        self.bucketed, self._buckets, self._seed = bucketed, buckets, seed

    def __call__(self, dataset: Any, epoch: int) -> list[Any]:
        rng = np.random.default_rng([self._seed, epoch, 2])
        return mix_lengths(self.bucketed, self._buckets, rng)


def mix(iterator: Any, buckets: int) -> None:
    """Make fairseq's iterator mix its batches, anew for every epoch, by its seed.

    Args:
        iterator: fairseq's EpochBatchIterator.
        buckets: K of :func:`~rbn_fairseq.tasks.batching.mix_lengths`.
    """
    iterator.batch_sampler = _Mixed(bucketed_batches(iterator), buckets, iterator.seed)
    iterator._frozen_batches = None  # fairseq asks the composer for them


def bucketed_batches(iterator: Any) -> Sequence[Any]:
    """Return fairseq's own batches, of sentences of like length, also where the iterator mixes."""
    sampler = iterator.batch_sampler
    return sampler.bucketed if isinstance(sampler, _Mixed) else iterator.frozen_batches


class LengthMixingTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    With ``--length-mixing K`` the training's batches are mixed anew for every epoch
    (:func:`~rbn_fairseq.tasks.batching.mix_lengths`), by the seed and the epoch alone: a resumed
    training sees those of an uninterrupted one, and all processes compose the same ones, of which
    each takes its own. A line tells how much padding that takes.
    """

    cfg: Any

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Set the task up.

        Raises:
            ValueError: if batches cannot be mixed so.
        """
        if cfg.length_mixing < 1:
            raise ValueError(
                f"--length-mixing must be at least 1, but is {cfg.length_mixing}. 1 leaves "
                "fairseq's batches as they are."
            )
        if cfg.length_mixing > 1 and cfg.curriculum > 0:
            raise ValueError(
                f"--curriculum {cfg.curriculum} trains on short sentences first, but with "
                f"--length-mixing {cfg.length_mixing} every batch has short and long ones. Leave "
                "one of the two out."
            )
        return super().setup_task(cfg, **kwargs)  # type: ignore[misc]

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator; the training's mixes."""
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        training = dataset is self.datasets.get(self.cfg.train_subset)  # type: ignore[attr-defined]
        mixed = isinstance(iterator.batch_sampler, _Mixed)  # which fairseq has kept
        # Where there is no batch at all, fairseq says so.
        if training and self.cfg.length_mixing > 1 and not mixed and iterator.frozen_batches:
            mix(iterator, self.cfg.length_mixing)
            if process_rank() == 0:
                self._tell_mixing(iterator, dataset)
        return iterator

    def _tell_mixing(self, iterator: Any, dataset: Any) -> None:
        buckets, number = self.cfg.length_mixing, len(iterator.frozen_batches)
        if buckets > number:
            logger.warning(
                "--length-mixing %d: there are only %d batches; each is drawn from all of them.",
                *(buckets, number),
            )
        sides = []
        for side, lengths in (("source", dataset.src_sizes), ("target", dataset.tgt_sizes)):
            share, most = padding(iterator.frozen_batches, lengths)
            own_share, own_most = padding(bucketed_batches(iterator), lengths)
            sides.append(
                f"{side}: {100 * share:.1f} % padding (unmixed {100 * own_share:.1f} %), largest "
                f"batch {most} tokens with its padding (unmixed {own_most})"
            )
        logger.info("length mixing: %d buckets | %s", min(buckets, number), " | ".join(sides))
