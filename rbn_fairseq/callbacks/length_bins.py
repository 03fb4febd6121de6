"""Cuts the bins of sentence lengths by the training sentences."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.measuring.bins import cut_bins, sentence_lengths
from rbn_fairseq.norms import PopulationByLength, populations_by_length
from rbn_fairseq.norms.moments import process_rank

__all__ = ["LengthBinEdges"]

logger = logging.getLogger(__name__)


class LengthBinEdges(Callback):
    """Cuts the bins of ``--norm-batch-length-bins``.

    They are cut by the lengths of the training sentences (of the first part of data in several),
    once: a checkpoint has its own. A line of the log says where they end.
    """

    _populations: Sequence[PopulationByLength] = ()  # until they have bins

    def on_model(self, model: nn.Module) -> None:
        """Find the norms that have bins."""
        self._populations = populations_by_length(model)

    def on_batches(self, iterator: Any) -> None:
        """Cut new bins by the training's batches; log where bins end.

        Raises:
            ValueError: if the lengths cannot be cut like that.
        """
        populations, adapter = self._populations, self.training.adapter
        if not populations or adapter.source_lengths(iterator.dataset) is None:
            return
        self._populations = ()
        fresh = [part for part in populations if part.edges[-1] == 0]
        if fresh:
            lengths = sentence_lengths(adapter, iterator)
            bins = cut_bins(lengths, fresh[0].bins, "--norm-batch-length-bins")
            assert bins is not None
            for population in fresh:
                population.set_bins(bins)
        if process_rank() == 0:
            edges = populations[0].edges.tolist()
            logger.info(
                f"length bins: source lengths {edges[0]:g} to {edges[-1]:g} in {len(edges) - 1} "
                f"bins, edges {' '.join(f'{edge:g}' for edge in edges)}, "
                + ("cut by the training data" if fresh else "as the model has them")
            )
