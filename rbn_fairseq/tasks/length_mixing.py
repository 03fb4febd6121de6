"""Training batches of sentences of several lengths, or of random sentences."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.tasks.batching import RANDOM, mix_lengths, padding, random_batches

__all__ = ["LengthMixingConfig", "LengthMixingTask", "bucketed_batches", "mix", "parse_mixing"]

logger = logging.getLogger(__name__)


@dataclass
class LengthMixingConfig(FairseqDataclass):
    """Options of length mixing."""

    length_mixing: str = field(
        default="1",
        metadata={
            "help": "which sentences share a training batch: an integer K draws every batch from "
            "K random length buckets, at about the same number of real tokens; `random` cuts all "
            "sentences in random order into batches of equal numbers of real tokens (source and "
            "target), as many as fairseq makes; both anew for every epoch; 1 = fairseq's batches "
            "of sentences of like length. None of it makes rbn_transformer compute more tokens: it "
            "skips padding"
        },
    )
    # Known elsewhere; without a help text they do not become options.
    curriculum: int = II("dataset.curriculum")


def parse_mixing(value: object) -> Optional[int]:
    """Read a value of ``--length-mixing``; YAML and older checkpoints have an integer in its place.

    Returns:
        The number of length buckets; ``None`` for ``random``, which has no buckets.

    Raises:
        ValueError: for another value than a positive integer or ``random``.
    """
    text = str(value)
    if text == RANDOM:
        return None
    if not re.fullmatch("[1-9][0-9]*", text):
        raise ValueError(
            "--length-mixing must be a positive integer (every batch from so many length buckets; "
            f"1 leaves fairseq's batches as they are) or `random`, but is `{text}`."
        )
    return int(text)


class _Mixed:
    """Composes the batches of an epoch; what fairseq's iterator takes in place of batches."""

    def __init__(self, bucketed: Sequence[Any], buckets: Optional[int], seed: int) -> None:
        self.bucketed, self._buckets, self._seed = bucketed, buckets, seed

    def __call__(self, dataset: Any, epoch: int) -> list[Any]:
        rng = np.random.default_rng([self._seed, epoch, 2])
        if self._buckets is None:
            return random_batches(self.bucketed, _real_tokens(dataset), rng)
        return mix_lengths(self.bucketed, self._buckets, rng)


def _real_tokens(dataset: Any) -> npt.NDArray[np.int64]:
    """Return the number of tokens of each sentence pair, source and target together."""
    tokens: npt.NDArray[np.int64] = dataset.src_sizes + dataset.tgt_sizes
    return tokens


def mix(iterator: Any, buckets: Optional[int]) -> None:
    """Make fairseq's iterator mix its batches, anew for every epoch, by its seed.

    Args:
        iterator: fairseq's EpochBatchIterator.
        buckets: K of :func:`~rbn_fairseq.tasks.batching.mix_lengths`; ``None``: none, its batches
            are those of :func:`~rbn_fairseq.tasks.batching.random_batches`.
    """
    iterator.batch_sampler = _Mixed(bucketed_batches(iterator), buckets, iterator.seed)
    iterator._frozen_batches = None  # fairseq asks the composer for them


def bucketed_batches(iterator: Any) -> Sequence[Any]:
    """Return fairseq's own batches, of sentences of like length, also where the iterator mixes."""
    sampler = iterator.batch_sampler
    return sampler.bucketed if isinstance(sampler, _Mixed) else iterator.frozen_batches


class LengthMixingTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    With ``--length-mixing`` the training's batches are composed anew for every epoch, by the seed
    and the epoch alone (K: :func:`~rbn_fairseq.tasks.batching.mix_lengths`, ``random``:
    :func:`~rbn_fairseq.tasks.batching.random_batches`): a resumed training sees those of an
    uninterrupted one, and all processes compose the same ones, of which each takes its own. They
    are as many as fairseq's. A line describes them.
    """

    cfg: Any

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Set the task up.

        Raises:
            ValueError: if batches cannot be mixed so.
        """
        if parse_mixing(cfg.length_mixing) != 1 and cfg.curriculum > 0:
            raise ValueError(
                f"--curriculum {cfg.curriculum} trains on short sentences first, but with "
                f"--length-mixing {cfg.length_mixing} every batch has short and long ones. Leave "
                "one of the two out."
            )
        return super().setup_task(cfg, **kwargs)  # type: ignore[misc]

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator; the training's mixes.

        Raises:
            ValueError: if there are no batches to mix.
        """
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        training = dataset is self.datasets.get(self.cfg.train_subset)  # type: ignore[attr-defined]
        buckets = parse_mixing(self.cfg.length_mixing)
        mixed = isinstance(iterator.batch_sampler, _Mixed)  # which fairseq has kept
        if training and buckets != 1 and not mixed:
            if not iterator.frozen_batches:
                multiple = kwargs.get("required_batch_size_multiple", 1)
                raise ValueError(
                    f"--length-mixing {self.cfg.length_mixing} needs at least one batch of "
                    f"fairseq's, but there is none: the training set has {len(dataset)} sentences, "
                    "of which fairseq leaves out those that are too long, and the rest beyond a "
                    f"multiple of --required-batch-size-multiple {multiple}. Give more data, or "
                    "--required-batch-size-multiple 1."
                )
            mix(iterator, buckets)
            if process_rank() == 0:
                _describe(iterator, dataset, buckets)
        return iterator


def _describe(iterator: Any, dataset: Any, buckets: Optional[int]) -> None:
    batches = iterator.frozen_batches
    number = len(batches)
    if buckets is None:
        how = RANDOM
    else:
        how = f"{min(buckets, number)} buckets"
        if buckets > number:
            logger.warning(
                "--length-mixing %d: there are only %d batches; each is drawn from all of them.",
                *(buckets, number),
            )
    tokens = _real_tokens(dataset)
    sizes = [int(tokens[batch].sum()) for batch in batches]
    groups = sum(len(np.unique(dataset.src_sizes[batch])) for batch in batches)
    logger.info(
        "length mixing: %s | %d batches of %.0f real tokens (largest %d) and %.1f groups of one "
        "source length on average | padding saved by rbn_transformer: source %.1f %%, target "
        "%.1f %%",
        *(how, number, sum(sizes) / number, max(sizes), groups / number),
        *(100 * padding(batches, lengths) for lengths in (dataset.src_sizes, dataset.tgt_sizes)),
    )
