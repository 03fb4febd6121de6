"""Bins of sentence lengths: where they end, and sentences that are in none of them."""

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np
from torch import nn

from rbn_fairseq.norms import LengthBatchNorm, cut_lengths
from rbn_fairseq.norms.moments import process_rank

__all__ = ["LengthBinsTask", "training_lengths"]

logger = logging.getLogger(__name__)


def training_lengths(iterator: Any, dataset: Any) -> np.ndarray:
    """Return the source lengths of the sentences that are trained on.

    Args:
        iterator: fairseq's over the training batches.
        dataset: its training data.
    """
    lengths: np.ndarray = dataset.src_sizes[np.concatenate(iterator.frozen_batches)]
    return lengths


def _norms(model: Optional[nn.Module]) -> list[LengthBatchNorm]:
    parts: Iterable[nn.Module] = () if model is None else model.modules()
    return [part for part in parts if isinstance(part, LengthBatchNorm)]


class LengthBinsTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - Bins of ``--norm-batch-length-bins`` are cut by the lengths of the training sentences (of the
      first part of data in several), once: a checkpoint has its own. A line tells where they end.
    - A line tells how many sentences of a set are shorter or longer than any that the bins were
      cut by: their norms take the nearest bin.
    """

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
            ValueError: if its sentences have too few different lengths.
        """
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        norms = _norms(self._binned)
        if norms and hasattr(dataset, "src_sizes"):
            trains = dataset is self.datasets.get(self.cfg.train_subset)  # type: ignore[attr-defined]
            whose = "as the model has them"
            fresh = [norm for norm in norms if norm.population.edges[-1] == 0]
            if trains and fresh:
                whose = "cut by the training data"
                _set_bins(fresh, training_lengths(iterator, dataset))
            if self._is_new(dataset):
                edges = norms[0].population.edges.tolist()
                if trains:
                    _tell_bins(edges, whose)
                _tell_outside(edges, dataset.src_sizes)
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
        raise ValueError(f"--norm-batch-length-bins: {error}") from None
    for norm in norms:
        norm.population.set_bins(bins)


def _tell_bins(edges: Sequence[float], whose: str) -> None:
    if process_rank() == 0:
        logger.info(
            "length bins: source lengths %g to %g in %d bins, edges %s, %s",
            *(edges[0], edges[-1], len(edges) - 1, " ".join(f"{edge:g}" for edge in edges), whose),
        )


def _tell_outside(edges: Sequence[float], lengths: Any) -> None:
    shorter, longer = int((lengths < edges[0]).sum()), int((lengths > edges[-1]).sum())
    if shorter + longer > 0 and process_rank() == 0:
        logger.info(
            "length bins: of %d sentences %d are shorter and %d longer than any of the training "
            "(%g to %g tokens); norms take the nearest bin's statistics",
            *(len(lengths), shorter, longer, edges[0], edges[-1]),
        )
