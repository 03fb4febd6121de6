"""Training batches that mix sentences of different lengths."""

import logging
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from fairseq.dataclass import FairseqDataclass

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.measuring.adapters import TaskAdapter
from rbn_fairseq.measuring.batches import RANDOM, is_mixed, mix, padding, parse_mixing
from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.norms.options import option

__all__ = ["LengthMixing", "LengthMixingConfig"]

logger = logging.getLogger(__name__)


@dataclass
class LengthMixingConfig(FairseqDataclass):
    """Options of length mixing."""

    length_mixing: str = option(
        "1",
        "which sentences share a training batch: an integer K draws every batch from K random "
        "length buckets, at about the same number of real tokens; `random` cuts all sentences in "
        "random order into batches of equal numbers of real tokens (source and target), as many as "
        "fairseq makes; both anew for every epoch; 1 = fairseq's batches of sentences of like "
        "length. None of it makes rbn_transformer compute more tokens: it skips padding",
    )


class LengthMixing(Callback):
    """Composes the training's batches of ``--length-mixing`` anew for every epoch.

    The seed and the epoch alone decide (K: :func:`~rbn_fairseq.measuring.batches.mix_lengths`,
    ``random``: :func:`~rbn_fairseq.measuring.batches.random_batches`): a resumed training sees the
    batches of an uninterrupted one, and all processes compose the same ones, of which each takes
    its own. They are as many as fairseq's. A line of the log describes them.
    """

    options = LengthMixingConfig

    def check(self, model_cfg: Any) -> None:
        """Refuse --curriculum together with mixing.

        Raises:
            ValueError: for that, and for a malformed value.
        """
        value = self.training.options.length_mixing
        curriculum = self.training.cfg.dataset.curriculum
        if parse_mixing(value) != 1 and curriculum > 0:
            raise ValueError(
                f"--curriculum {curriculum} trains on short sentences first, but with "
                f"--length-mixing {value} every batch has short and long ones. Leave one of the "
                "two out."
            )

    def on_batches(self, iterator: Any) -> None:
        """Make the training's iterator mix its batches; a ``ValueError`` if there are none."""
        value = self.training.options.length_mixing
        buckets, adapter = parse_mixing(value), self.training.adapter
        if buckets == 1 or is_mixed(iterator):
            return
        if not iterator.frozen_batches:
            raise ValueError(
                f"--length-mixing {value} needs at least one batch of fairseq's, but there is "
                f"none of the {len(iterator.dataset)} training sentences. Give more data, or "
                "--required-batch-size-multiple 1."
            )
        mix(iterator, buckets, adapter.tokens(iterator.dataset))
        if process_rank() == 0:
            _describe(adapter, iterator, buckets)


def _describe(adapter: TaskAdapter, iterator: Any, buckets: Optional[int]) -> None:
    batches, dataset = iterator.frozen_batches, iterator.dataset
    number, tokens = len(batches), adapter.tokens(dataset)
    sizes = [int(tokens[batch].sum()) for batch in batches]
    sides = adapter.source_lengths(dataset), adapter.target_lengths(dataset)
    source, target = (lengths if lengths is not None else tokens for lengths in sides)
    groups = sum(len(np.unique(source[batch])) for batch in batches)
    logger.info(
        f"length mixing: {RANDOM if buckets is None else f'{min(buckets, number)} buckets'} | "
        f"{number} batches of {sum(sizes) / number:.0f} real tokens (largest {max(sizes)}) and "
        f"{groups / number:.1f} groups of one source length on average | padding saved by "
        f"rbn_transformer: source {100 * padding(batches, source):.1f} %, target "
        f"{100 * padding(batches, target):.1f} %"
    )
