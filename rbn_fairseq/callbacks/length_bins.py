"""Cuts the bins of sentence lengths, and logs how many sentences lie outside of them."""

import logging
import weakref
from typing import Any, Optional

from torch import nn

from rbn_fairseq.callbacks.base import Callback, Training
from rbn_fairseq.measuring.bins import cut_bins, sentence_lengths
from rbn_fairseq.norms import PopulationByLength, populations_by_length
from rbn_fairseq.norms.moments import process_rank

__all__ = ["LengthBinEdges"]

logger = logging.getLogger(__name__)


class LengthBinEdges(Callback):
    """Cuts the bins of ``--norm-batch-length-bins``.

    - They are cut by the lengths of the training sentences (of the first part of data in several),
      once: a checkpoint has its own. A line of the log says where they end.
    - A line says how many sentences of a split are shorter or longer than any that the bins were
      cut by: their norms take the nearest bin.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._populations: list[PopulationByLength] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()  # data sets

    def on_model(self, model: nn.Module) -> None:
        """Find the norms that have bins."""
        self._populations = populations_by_length(model)

    on_loaded_model = on_model

    def on_batches(self, split: Optional[str], dataset: Any, iterator: Any) -> None:
        """Cut new bins by the training's batches; log where bins end, and what is outside.

        Raises:
            ValueError: if the lengths cannot be cut like that.
        """
        adapter = self.training.adapter
        if not self._populations or split is None or adapter.source_lengths(dataset) is None:
            return
        trains = split == self.training.train_subset
        fresh = [part for part in self._populations if trains and part.edges[-1] == 0]
        if not fresh and (dataset in self._seen or process_rank() > 0):
            return
        self._seen.add(dataset)
        lengths = sentence_lengths(adapter, iterator, dataset)
        if fresh:
            bins = cut_bins(lengths, fresh[0].bins, "--norm-batch-length-bins")
            assert bins is not None
            for population in fresh:
                population.set_bins(bins)
        if process_rank() > 0:
            return
        edges = self._populations[0].edges.tolist()
        if trains:
            logger.info(
                f"length bins: source lengths {edges[0]:g} to {edges[-1]:g} in {len(edges) - 1} "
                f"bins, edges {' '.join(f'{edge:g}' for edge in edges)}, "
                + ("cut by the training data" if fresh else "as the model has them")
            )
        shorter, longer = int((lengths < edges[0]).sum()), int((lengths > edges[-1]).sum())
        if edges[-1] > 0 and shorter + longer > 0:  # where no bins were cut, all edges are 0
            logger.info(
                f"length bins: of {len(lengths)} sentences in `{split}` {shorter} are shorter and "
                f"{longer} longer than any of the training; norms take the nearest bin's statistics"
            )
