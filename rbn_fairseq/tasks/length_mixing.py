"""Training batches that draw their sentences from several length buckets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fairseq.dataclass import FairseqDataclass

from rbn_fairseq.tasks.batching import mix_lengths

__all__ = ["LengthMixingConfig", "LengthMixingTask"]


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


class _Mixed:
    """Composes the batches of an epoch; what fairseq's iterator takes in place of batches."""

    def __init__(self, batches: Any, buckets: int, seed: int) -> None:
        self._batches, self._buckets, self._seed = batches, buckets, seed

    def __call__(self, dataset: Any, epoch: int) -> list[Any]:
        make: Callable[..., Sequence[Any]] | None
        make = self._batches if callable(self._batches) else None  # --rebuild-batches
        batches = make(dataset, epoch) if make else self._batches
        if self._buckets > len(batches):
            raise ValueError(
                f"--length-mixing {self._buckets}: there are only {len(batches)} batches to mix. "
                "Give a number up to theirs."
            )
        rng = np.random.default_rng([self._seed, epoch, 2])
        return mix_lengths(batches, self._buckets, rng)


class LengthMixingTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    With ``--length-mixing K`` the training's batches are mixed anew for every epoch
    (:func:`~rbn_fairseq.tasks.batching.mix_lengths`), by the seed and the epoch alone: a resumed
    training sees those of an uninterrupted one, and all processes compose the same ones, of which
    each takes its own.
    """

    cfg: Any

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator; the training's mixes.

        Raises:
            ValueError: if there are fewer batches than buckets to mix, or no number of buckets.
        """
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        buckets = self.cfg.length_mixing
        if buckets < 1:
            raise ValueError(
                f"--length-mixing must be at least 1, but is {buckets}. 1 leaves fairseq's "
                "batches as they are."
            )
        training = dataset is self.datasets.get(self.cfg.train_subset)  # type: ignore[attr-defined]
        if training and buckets > 1 and not isinstance(iterator.batch_sampler, _Mixed):
            seed = kwargs.get("seed", 1)
            iterator.batch_sampler = _Mixed(iterator.batch_sampler, buckets, seed)
            iterator._frozen_batches = None  # fairseq asks the composer for them
        return iterator
