"""Bins of sentence lengths: where they end, and sentences that are in none of them."""

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np
from torch import nn

from rbn_fairseq.norms import LengthBatchNorm, LengthBins, cut_lengths
from rbn_fairseq.norms.moments import process_rank

__all__ = ["LengthBinsTask", "training_bins"]

logger = logging.getLogger(__name__)


def training_bins(iterator: Any, dataset: Any, number: int, rule: str) -> LengthBins:
    """Cut the lengths of the sentences that are trained on into bins.

    Args:
        iterator: fairseq's over the training batches.
        dataset: its training data.
        number: of bins.
        rule: see :func:`~rbn_fairseq.norms.cut_lengths`.

    Raises:
        ValueError: if they cannot be cut like that.
    """
    sentences = np.concatenate([np.asarray(batch) for batch in iterator.frozen_batches])
    return cut_lengths(dataset.src_sizes[sentences], number, rule)


def _norms(model: Optional[nn.Module]) -> list[LengthBatchNorm]:
    parts: Iterable[nn.Module] = () if model is None else model.modules()
    return [part for part in parts if isinstance(part, LengthBatchNorm)]


class LengthBinsTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - Bins of ``--norm-batch-length-bins`` are cut by the lengths of the training sentences, once:
      a checkpoint has its own.
    - A line tells how many sentences to validate on or to translate are shorter or longer than any
      of the training: their norms take the nearest bin.
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
        if dataset is self.datasets.get(self.cfg.train_subset):  # type: ignore[attr-defined]
            fresh = [norm for norm in norms if norm.population.edges[-1] == 0]
            if fresh:
                options = fresh[0].options
                bins = training_bins(iterator, dataset, options.length_bins, options.length_edges)
                for norm in fresh:
                    norm.population.set_bins(bins)
                _tell_bins(bins)
        elif norms and hasattr(dataset, "src_sizes") and self._is_new(dataset):
            _tell_outside(norms[0].population.edges.tolist(), dataset.src_sizes)
        return iterator

    def _is_new(self, dataset: Any) -> bool:
        self._told = self._told or weakref.WeakSet()
        seen = dataset in self._told
        self._told.add(dataset)
        return not seen


def _tell_bins(bins: LengthBins) -> None:
    if process_rank() == 0:
        logger.info(
            "length bins: source lengths %d to %d in %d bins, edges %s",
            *(bins.edges[0], bins.edges[-1], len(bins.centres)),
            " ".join(f"{edge:g}" for edge in bins.edges),
        )


def _tell_outside(edges: Sequence[float], lengths: Any) -> None:
    shorter, longer = int((lengths < edges[0]).sum()), int((lengths > edges[-1]).sum())
    if shorter + longer > 0 and process_rank() == 0:
        logger.info(
            "length bins: of %d sentences %d are shorter and %d longer than any of the training "
            "(%d to %d tokens); norms take the nearest bin's statistics",
            *(len(lengths), shorter, longer, edges[0], edges[-1]),
        )
