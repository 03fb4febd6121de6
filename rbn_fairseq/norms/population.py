"""Running statistics: what inference normalises with."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Optional, Self

import torch
from torch import Tensor, nn

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.affine import multiply_add
from rbn_fairseq.norms.buffers import FullPrecision
from rbn_fairseq.norms.moments import Moments
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, on_rows

__all__ = ["PopulationNorm", "PopulationStatistics", "RunningStatistics"]


def _largest(values: Tensor) -> Tensor:
    """Return the largest magnitude, 0-dim; NaN if any value is."""
    return torch.linalg.vector_norm(values, math.inf)  # type: ignore[no-any-return]


class RunningStatistics(FullPrecision):
    """Buffers that move with the batches of training.

    They are float, so that averaging tools and exponential moving averages of a model can treat
    them like weights; they stay fp32 (or fp64) when the model is cast to half precision; and they
    are changed in place, so that references to them stay good.
    """

    @torch.no_grad()
    def replace_where(self, good: Tensor, **new: Tensor) -> None:
        """Replace buffers by name where ``good`` (0-dim) is true, and the new values are finite.

        The condition is evaluated on the device: no host synchronisation.
        """
        largest = _largest(torch.cat([value.reshape(-1) for value in new.values()]))
        good = good & (largest < math.inf)
        for name, value in new.items():
            buffer = getattr(self, name)
            torch.where(good, value, buffer, out=buffer)

    def moving(self) -> list[Tensor]:
        """Return the buffers that batches move: what processes have their mean of."""
        return list(self.buffers())

    def set(self, mean: Tensor, var: Tensor) -> None:
        """Replace what evaluation normalises with, in place. ``mean``, ``var``: ``(C,)``."""
        raise NotImplementedError


class PopulationStatistics(RunningStatistics):
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
        """Return mean and variance, each ``(C,)``."""
        return self.running_mean, self.running_var

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
    def set(self, mean: Tensor, var: Tensor) -> None:
        """Replace the statistics, in place. ``mean``, ``var``: ``(C,)``."""
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{self.running_mean.numel()}, momentum={self.momentum}"


class PopulationNorm(nn.Module):
    """A norm whose training uses the batch, and whose evaluation uses running statistics.

    Evaluation is one multiply-add per element, by a scale and shift that every call computes;
    after :meth:`make_generation_fast_`, the first.

    A subclass has ``_train(rows, layout)``, from rows ``(N, C)`` of real tokens and where the
    sentences lie in them (``None`` where that is not known), and ``affine_map()``.

    Attributes:
        by_sentence: whether the norm asks which sentence a row is of.
        population: the running statistics.
        sync: whether the batch is that of all processes together.
        repeatable: whether training divides by what the batch alone says, so that a forward can
            be repeated when the running statistics have moved.
    """

    repeatable: ClassVar[bool] = False
    by_sentence: ClassVar[bool] = False

    population: RunningStatistics
    sync: bool
    _keeps = False
    _kept: Optional[tuple[Tensor, Tensor]] = None

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x``; same shape and dtype out.

        Args:
            x: rows ``(N, C)`` of real tokens; or with padding ``(T, B, C)`` or ``(..., C)``.
            tokens: the layout of the rows; or which of ``x``'s positions are real tokens. ``None``
                = all.

        Raises:
            ValueError: if ``tokens`` describes another shape than ``x``'s.
        """
        if self.training:
            return on_rows(self._train, x, tokens, self.by_sentence)
        if tokens is not None:
            tokens.check(x)
        return self._evaluate(x, tokens)

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift, each ``(C,)``: evaluation is ``x * scale + shift``."""
        raise NotImplementedError

    def schedule(self) -> dict[str, int]:
        """Return by option the updates at which the norm's schedule ends; none without one."""
        return {}

    def _record(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        lengths = None if layout is None else layout.lengths
        for recorder in scope.moment_recorders.get():
            recorder.append(scope.Record(self, batch, lengths))

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        raise NotImplementedError

    def make_generation_fast_(self, **_: Any) -> None:
        """Compute scale and shift of evaluation once, where no gradient is wanted.

        fairseq calls this before it generates: parameters and statistics do not change any more
        (but by training mode, loading a state, casts, and moves to a device).
        """
        self._keeps = True

    def _evaluate(self, x: Tensor, tokens: Optional[Tokens]) -> Tensor:
        captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if not self._keeps or torch.is_grad_enabled() or captured:
            return multiply_add(x, *self.affine_map())
        if self._kept is None:
            self._kept = self.affine_map()
        return multiply_add(x, *self._kept)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; what training changes is not kept."""
        if mode:
            self._kept = None
        return super().train(mode)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._kept = None
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]
