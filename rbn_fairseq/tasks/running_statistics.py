"""When the running statistics of norms move in a training, and when not."""

from contextlib import nullcontext
from typing import Any, Optional

import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from torch import nn

from rbn_fairseq.norms import PopulationNorm, dummy_batch
from rbn_fairseq.norms.moments import mean_over_processes, world_size

__all__ = ["RunningStatisticsTask"]


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

    @property
    def waits_for_others(self) -> bool:
        return any(world_size(norm.sync) > 1 for norm in self._norms)

    def agree(self) -> None:
        own = [norm.population for norm in self._norms if not norm.sync]
        mean_over_processes([buffer for population in own for buffer in population.moving()])


def _loss_scale(optimizer: Any) -> float:
    """Return what a skipped update lowers: the scaler of --amp says nothing else of it."""
    return optimizer.scaler.get_scale() if isinstance(optimizer, AMPOptimizer) else 1.0


class RunningStatisticsTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    Running statistics move with the updates of the weights:

    - Where fairseq drops an update (overflow of the loss scale, no memory) or does it again
      (retries of --amp, the search for the layer that makes NaN), they are as before it.
    - Dummy batches (on processes whose data ran out) leave all statistics alone.
    - Processes that do not synchronise their norms agree after every update on the mean of their
      running statistics, so that all validate with, and the first one saves, the same ones.

    Attributes:
        updates: number of updates that were made.
    """

    keeps_running_statistics = True
    updates = 0
    _attempt: Optional[_Attempt] = None
    _lost = -1

    def train_step(
        self,
        sample: Any,
        model: nn.Module,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Do fairseq's step; a dummy batch (``ignore_grad``) leaves all statistics alone."""
        # fairseq clears the gradients before the first micro-batch of an update, and only there.
        if all(weight.grad is None for weight in model.parameters()):
            self.begin_attempt(model)
        try:
            with dummy_batch() if ignore_grad else nullcontext():
                return super().train_step(  # type: ignore[misc]
                    sample,
                    model,
                    criterion,
                    optimizer,
                    update_num,
                    ignore_grad=ignore_grad,
                    **kwargs,
                )
        except RuntimeError as error:
            if "out of memory" in str(error):
                self._lose(update_num, error)
            raise

    def _lose(self, update_num: int, error: RuntimeError) -> None:
        """Take statistics back: fairseq drops this process's part in the update, and goes on.

        Raises:
            ValueError: if other processes wait for statistics that will not come.
        """
        assert self._attempt is not None
        if self._attempt.waits_for_others:
            raise ValueError(
                "No memory for a batch on this process, and with --norm-sync the others wait for "
                "its statistics. Lower --max-tokens, or leave out --norm-sync: fairseq then skips "
                "such batches."
            ) from error
        self._attempt.undo()
        if world_size(sync=True) > 1:  # alone, fairseq begins the update anew
            self._lost = update_num

    def optimizer_step(self, optimizer: Any, model: nn.Module, update_num: int) -> None:
        """Do fairseq's step; if it is done, the running statistics have moved for good."""
        before = _loss_scale(optimizer)
        super().optimizer_step(optimizer, model, update_num)  # type: ignore[misc]
        if self._attempt is not None and _loss_scale(optimizer) >= before:
            self.end_attempt(lost=self._lost == update_num)
            self.updates = update_num + 1

    def begin_attempt(self, model: nn.Module) -> None:
        """Begin an attempt at an update, before its first micro-batch."""
        self._drop_attempt()
        self._attempt = _Attempt(model)

    def end_attempt(self, lost: bool) -> None:
        """End it with an update, in which this process has no part where it was ``lost``."""
        assert self._attempt is not None
        if lost:  # what came after has no part in the update, either
            self._attempt.undo()
        self._attempt.agree()
        self._attempt = None

    def _drop_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.undo()
            self._attempt = None

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Take back what an update that was not made has left."""
        self._drop_attempt()
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return the task's part of a checkpoint; the model's part is as before a dropped update.

        fairseq collects the model's part first, but not as copies.
        """
        self._drop_attempt()
        return {**super().state_dict(), "updates": self.updates}  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Read the task's part of a checkpoint."""
        rest = dict(state_dict)
        self.updates = rest.pop("updates", 0)
        super().load_state_dict(rest)  # type: ignore[misc]
