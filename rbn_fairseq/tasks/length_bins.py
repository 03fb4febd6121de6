"""Bins of sentence lengths: where they end, and sentences that are in none of them."""

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np
from torch import nn

from rbn_fairseq.norms import LengthBatchNorm, LengthBins, cut_lengths
from rbn_fairseq.norms.lengths import RULES
from rbn_fairseq.norms.moments import process_rank

__all__ = ["LengthBinsTask", "batched_lengths", "warn_of_thin_bins"]

logger = logging.getLogger(__name__)


def batched_lengths(iterator: Any, dataset: Any) -> np.ndarray:
    """Return the source lengths of the sentences in batches; others were too long for them.

    Args:
        iterator: fairseq's, over batches.
        dataset: its data.
    """
    batches = iterator.frozen_batches
    lengths: np.ndarray = dataset.src_sizes[np.concatenate(batches)] if batches else np.empty(0)
    return lengths


def _norms(model: Optional[nn.Module]) -> list[LengthBatchNorm]:
    parts: Iterable[nn.Module] = () if model is None else model.modules()
    return [part for part in parts if isinstance(part, LengthBatchNorm)]


class LengthBinsTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - Bins of ``--norm-batch-length-bins`` are cut by the lengths of the training sentences (of the
      first part of data in several), once: a checkpoint has its own. A line tells where they end.
    - A line tells how many sentences of a split are shorter or longer than any that the bins were
      cut by: their norms take the nearest bin.
    """

    cuts_length_bins = True
    cfg: Any
    _binned: Optional[nn.Module] = None
    _told: Any = None  # of which data

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model."""
        model: nn.Module = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        self._binned = model
        return model

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator; the training's is what new bins are cut by.

        Raises:
            ValueError: if its sentences have too few different lengths, or given edges leave a bin
            without any.
        """
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        norms = _norms(self._binned)
        if norms and hasattr(dataset, "src_sizes"):
            splits = self.datasets.items()  # type: ignore[attr-defined]
            split = next((name for name, data in splits if data is dataset), None)
            trains = split == self.cfg.train_subset
            whose = "as the model has them"
            fresh = [norm for norm in norms if norm.population.edges[-1] == 0]
            if trains and fresh:
                whose = "cut by the training data"
                _set_bins(fresh, batched_lengths(iterator, dataset))
            # Each input of fairseq-interactive is a data set, but no split.
            if split is not None and self._is_new(dataset):
                edges = norms[0].population.edges.tolist()
                if trains:
                    _tell_bins(edges, whose)
                _tell_outside(split, edges, batched_lengths(iterator, dataset))
        return iterator

    def _is_new(self, dataset: Any) -> bool:
        self._told = self._told or weakref.WeakSet()
        seen = dataset in self._told
        self._told.add(dataset)
        return not seen


def _set_bins(norms: Sequence[LengthBatchNorm], lengths: np.ndarray) -> None:
    options = norms[0].options
    try:
        bins = cut_lengths(lengths, options.length_bins, options.length_edges)
    except ValueError as error:
        given = "edges" if options.length_edges not in RULES else "bins"
        raise ValueError(f"--norm-batch-length-{given}: {error}") from None
    warn_of_thin_bins(bins, lengths)
    for norm in norms:
        norm.population.set_bins(bins)


def warn_of_thin_bins(bins: LengthBins, lengths: np.ndarray) -> None:
    """Warn of the bin with the fewest training tokens where that is fewer than 1,000.

    The variance of a handful of tokens may be anything, 0 too, and inference divides by its root.
    """
    tokens, edges = np.histogram(lengths, bins.edges, weights=lengths)
    thinnest = int(tokens.argmin())
    if tokens[thinnest] < 1000 and process_rank() == 0:
        logger.warning(
            "length bins: only %d training tokens are in sentences of %g to %g tokens: the "
            "statistics of that bin will be poor. Ask for fewer bins, or for `quantiles`.",
            *(tokens[thinnest], edges[thinnest], edges[thinnest + 1]),
        )


def _tell_bins(edges: Sequence[float], whose: str) -> None:
    if process_rank() == 0:
        logger.info(
            "length bins: source lengths %g to %g in %d bins, edges %s, %s",
            *(edges[0], edges[-1], len(edges) - 1, " ".join(f"{edge:g}" for edge in edges), whose),
        )


def _tell_outside(split: str, edges: Sequence[float], lengths: np.ndarray) -> None:
    shorter, longer = int((lengths < edges[0]).sum()), int((lengths > edges[-1]).sum())
    known = edges[-1] > 0  # elsewhere nothing was cut
    if known and shorter + longer > 0 and process_rank() == 0:
        logger.info(
            "length bins: of %d sentences in `%s` %d are shorter and %d longer than any of the "
            "training (%g to %g tokens); norms take the nearest bin's statistics",
            *(len(lengths), split, shorter, longer, edges[0], edges[-1]),
        )
