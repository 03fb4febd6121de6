"""Keeps the running statistics of norms in step with the updates of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Optional

import torch
from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.norms import PopulationNorm, dummy_batch
from rbn_fairseq.norms.moments import mean_over_processes

__all__ = ["RunningStatistics"]


class _Attempt:
    """One attempt at an update: the norms, and their running statistics from before it."""

    def __init__(self, model: nn.Module) -> None:
        self._norms = [part for part in model.modules() if isinstance(part, PopulationNorm)]
        self._buffers = [buffer for norm in self._norms for buffer in norm.population.buffers()]
        flat = [buffer.reshape(-1) for buffer in self._buffers]
        self._before = torch.cat(flat) if flat else torch.empty(0)

    @torch.no_grad()
    def undo(self) -> None:
        parts = self._before.split([buffer.numel() for buffer in self._buffers])
        for buffer, value in zip(self._buffers, parts, strict=True):
            buffer.copy_(value.view_as(buffer))

    def agree(self) -> None:
        populations = [norm.population for norm in self._norms if not norm.sync]
        mean_over_processes([buffer for each in populations for buffer in each.moving()])


class RunningStatistics(Callback):
    """Keeps running statistics in step with the weights.

    - Where fairseq drops an update (overflow of the loss scale, no memory) or does it again
      (retries of --amp, the search for the layer that makes NaN), they are as before it.
    - Dummy batches (on processes whose data ran out) leave all statistics alone.
    - Processes that do not synchronise their norms agree after every update on the mean of their
      running statistics, so that all validate with, and the first one saves, the same ones.
    """

    _attempt: Optional[_Attempt] = None

    def on_attempt(self, model: nn.Module) -> None:
        """Begin an attempt at an update, from the statistics of the one before."""
        self._drop_attempt()
        self._attempt = _Attempt(model)

    @contextmanager
    def step(self, sample: Any, model: nn.Module, update: int, dummy: bool) -> Iterator[None]:
        """Leave statistics alone in a dummy batch."""
        with dummy_batch() if dummy else nullcontext():
            yield

    def on_update(self) -> None:
        """Make the statistics of an update final; all processes agree on them."""
        if self._attempt is not None:
            self._attempt.agree()
            self._attempt = None

    def _drop_attempt(self) -> None:
        """Take back what an update that was not made has left."""
        if self._attempt is not None:
            self._attempt.undo()
            self._attempt = None

    on_validation = before_save = _drop_attempt
