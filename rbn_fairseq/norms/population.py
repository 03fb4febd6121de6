"""Population statistics: running statistics, by which inference normalises."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Optional, Self, TypeVar

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.moments import BinMoments, Moments
from rbn_fairseq.norms.tokens import BatchLayout

__all__ = ["FullPrecision", "Population", "RunningStatistics", "split_statistics"]


class FullPrecision(nn.Module):
    """A module whose buffers are fp32 (or fp64), also where the model is in half precision."""

    def register_buffer(self, name: str, tensor: Optional[Tensor], persistent: bool = True) -> None:
        """Register a buffer, which torch's default dtype may have made a half-precision one."""
        if tensor is not None:
            tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        super().register_buffer(name, tensor, persistent)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._apply(lambda tensor: tensor)  # with assign=True buffers are those of the state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` and the like: statistics in half precision overflow at 65504, and with a small
        # momentum they stop moving, so only the device follows.
        def at_least_fp32(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            dtype = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == dtype else buffer.to(moved.device, dtype)

        super()._apply(at_least_fp32, recurse)  # type: ignore[no-untyped-call]
        return self


def _largest(values: Tensor) -> Tensor:
    """Return the largest magnitude, 0-dim; NaN if any value is."""
    return torch.linalg.vector_norm(values, math.inf)  # type: ignore[no-any-return]


class RunningStatistics(FullPrecision):
    """Buffers that move with the batches of training.

    They are float, so that averaging tools and exponential moving averages of a model can treat
    them like weights; they stay fp32 (or fp64) when the model is cast to half precision; and they
    are changed in place, so that references to them stay good.

    Attributes:
        by_length: whether they are kept for bins of sentence lengths, so that the norm has to know
            which sentence a row is of.
    """

    by_length: ClassVar[bool] = False

    @torch.no_grad()
    def replace_where(self, good: Tensor, **new: Tensor) -> None:
        """Replace buffers by name where ``good`` (0-dim) is true, and the new values are finite.

        The condition is evaluated on the device: no host synchronisation.
        """
        largest = _largest(torch.cat([value.reshape(-1) for value in new.values()]))
        good = good & (largest < math.inf)
        for name, value in new.items():
            buffer = getattr(self, name)
            torch.where(good, value.to(buffer.dtype), buffer, out=buffer)

    def moving(self) -> list[Tensor]:
        """Return the buffers that batches move: what processes have their mean of."""
        return list(self.buffers())

    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace what evaluation normalises with, in place.

        Args:
            mean: ``(C,)``.
            var: ``(C,)``.
            bins: the same by bins of sentence lengths; read where the statistics are by length.
        """
        raise NotImplementedError


class Population(RunningStatistics):
    """Running mean and biased variance of every channel (paper, Eq. 3).

    Args:
        channels: number of channels C.
        momentum: weight of the new value: ``running <- (1 - momentum) running + momentum new``.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def get(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each ``(C,)``; not copies."""
        return self.running_mean, self.running_var

    def expected(self, layout: Optional[BatchLayout], sync: bool) -> tuple[Tensor, Tensor]:
        """Return mean and variance that a batch is expected to have, each ``(C,)``; copies.

        Args:
            layout: the batch's sentences; read where the statistics are by length.
            sync: of the sentences of all processes.
        """
        mean, var = self.get()
        return mean.clone(), var.clone()

    def describe(
        self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout], sync: bool
    ) -> Moments:
        """Return a batch's moments with all that :meth:`update` reads."""
        return batch

    def update(self, batch: Moments) -> None:
        """Move towards the statistics of a batch, unless it is empty or not finite."""
        mean, var = self.running_mean, self.running_var
        new_mean, new_var = batch.mean.detach().to(mean.dtype), batch.var.detach().to(var.dtype)
        if not var.is_cpu:  # a look at the values would wait for them
            self.replace_where(
                batch.n > 0,
                running_mean=mean.lerp(new_mean, self.momentum),
                running_var=var.lerp(new_var, self.momentum),
            )
        elif batch.n and _largest(new_mean) < math.inf and _largest(new_var) < math.inf:
            mean.lerp_(new_mean, self.momentum)
            var.lerp_(new_var, self.momentum)

    @torch.no_grad()
    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace the statistics, in place, as in :meth:`RunningStatistics.set`."""
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)


_Value = TypeVar("_Value")


def split_statistics(state: Mapping[str, _Value]) -> tuple[dict[str, _Value], dict[str, _Value]]:
    """Return what is no running statistic in a state dict, and what is."""
    statistics = {
        name: value for name, value in state.items() if name.split(".")[-2:-1] == ["population"]
    }
    return {name: value for name, value in state.items() if name not in statistics}, statistics
