"""When the running statistics of norms move in a training, and when not."""

from typing import Any

from torch import nn

from rbn_fairseq.norms import PopulationNorm, dummy_batch
from rbn_fairseq.norms.moments import mean_over_processes

__all__ = ["RunningStatisticsTask"]


class RunningStatisticsTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - fairseq's dummy batches (on processes whose data ran out) leave all statistics alone.
    - Processes that do not synchronise their norms agree on the population statistics before
      each validation. (A checkpoint saved without validating first holds process 0's.)
    """

    def train_step(self, *args: Any, ignore_grad: bool = False, **kwargs: Any) -> Any:
        """Do fairseq's step; a dummy batch (``ignore_grad``) leaves all statistics alone."""
        if not ignore_grad:
            return super().train_step(*args, **kwargs)  # type: ignore[misc]
        with dummy_batch():
            return super().train_step(*args, ignore_grad=True, **kwargs)  # type: ignore[misc]

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Let processes that do not synchronise their norms agree on population statistics."""
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]
        norms = [m for m in model.modules() if isinstance(m, PopulationNorm) and not m.sync]
        mean_over_processes([stat for norm in norms for stat in norm.population.buffers()])
