"""Base of the norms that divide by a quadratic mean over the tokens."""

from collections.abc import Callable
from typing import Any, ClassVar, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.moments import BinMoments, Moments, all_reduce_sum, has_kernels
from rbn_fairseq.norms.normalise import gradient_sums
from rbn_fairseq.norms.population import RunningStatistics
from rbn_fairseq.norms.population_norm import PopulationNorm
from rbn_fairseq.norms.tokens import BatchLayout

__all__ = ["QuadraticMean", "QuadraticNorm"]

#: From ``mean(G z)`` to M and D, see :meth:`QuadraticNorm._normalise`.
Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]


class QuadraticMean(RunningStatistics):
    """Running quadratic mean of every channel, and what else the backward of a norm remembers.

    Args:
        channels: number of channels C.
        rest: further buffers by name, their first values.
    """

    running_square: Tensor

    def __init__(self, channels: int, **rest: Tensor) -> None:
        super().__init__()
        self.register_buffer("running_square", torch.ones(channels))
        for name, value in rest.items():
            self.register_buffer(name, value)

    @torch.no_grad()
    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace the quadratic mean, in place. ``mean``, ``var``: ``(C,)``."""
        self.running_square.copy_(mean.square() + var)


class QuadraticNorm(PopulationNorm):
    """Base of the norms that divide by a quadratic mean and subtract nothing.

    In evaluation ``y = x / sqrt(running quadratic mean + eps) * weight + bias``. In training a
    subclass decides; while statistics are frozen, as for recalibration, it divides by the batch's
    own quadratic mean. Means are over the batch's real tokens, in fp32 whatever the input's
    dtype. A batch without real tokens or with statistics that are not finite moves nothing, nor
    does a dummy batch.

    A subclass has ``_divide(rows, square, count, frozen)``, which normalises in training and,
    unless ``frozen``, moves the running statistics. Its options have ``eps``.
    """

    #: Whether r multiplies the output, and not the gradients alone.
    corrects_forward: ClassVar[bool] = True
    options: Any
    population: QuadraticMean
    _divide: Callable[..., Tensor]

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        counted = not scope.dummy.get()
        if not counted:
            layout = BatchLayout.empty(rows.device)
        square, count = self._batch_square(rows if counted else rows[:0])
        moments = Moments(torch.zeros_like(square), square, count)  # about zero
        self._record(moments, rows, layout)
        return self._divide(rows, square, count, scope.frozen.get())

    def _normalise(
        self, rows: Tensor, divisor: Tensor, r: Tensor, count: Tensor, gradient: Gradient
    ) -> Tensor:
        """Return ``z * r * weight + bias`` with ``z = rows / sqrt(divisor + eps)``.

        Without ``corrects_forward`` r is left out of that, and its gradients are the same.

        With G the gradient that arrives times weight and r, that of the rows is
        ``(G - z M) / sqrt(D + eps)``: two multiply-adds, and no tensor for z or G. All gradients of
        a dummy batch are 0.

        Args:
            rows: ``(N, C)``.
            divisor: the quadratic mean to divide by, ``(C,)``.
            r: ``(C,)``.
            count: 0-dim, the number of tokens of the batch.
            gradient: M and D, each ``(C,)``, from the mean of ``G z`` over the batch, ``(C,)``; it
                runs in the backward.
        """
        forward_r = r if self.corrects_forward else torch.ones_like(r)
        return _apply(
            rows, self.weight, self.bias, divisor, r, forward_r, count, self.options.eps,
            not scope.dummy.get(), self.sync, gradient,
        )  # fmt: skip

    @torch.no_grad()
    def _batch_square(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quadratic mean ``(C,)``, the running one where no token is real; the count."""
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        # On a CPU torch's kernel writes no squares.
        total = gradient_sums(wide, wide)[1] if has_kernels(wide) else wide.square().sum(0)
        sums = torch.cat([total, wide.new_full((1,), len(rows))])
        sums = all_reduce_sum(sums, self.sync)
        count = sums[-1]
        square = sums[:-1] / count.clamp(min=1)
        running = self.population.running_square.to(square.dtype)
        return torch.where(count == 0, running, square), count

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift of evaluation, each ``(C,)``, in the dtype of the statistics."""
        square = self.population.running_square
        scale = self.weight.to(square.dtype) * (square + self.options.eps).rsqrt()
        return scale, self.bias.to(square.dtype)


class _Normalise(torch.autograd.Function):
    """The forward with a given divisor; gradients of weight and bias, and of the rows as given."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,  # (N, C)
        weight: Tensor,
        bias: Tensor,
        divisor: Tensor,
        r: Tensor,
        forward_r: Tensor,
        count: Tensor,
        eps: float,
        counted: bool,
        sync: bool,
        gradient: Gradient,
    ) -> Tensor:
        scale = weight.to(r.dtype) * forward_r * (divisor + eps).rsqrt()
        ctx.eps, ctx.counted, ctx.sync, ctx.gradient = eps, counted, sync, gradient
        ctx.save_for_backward(rows, weight, divisor, r, count)
        return torch.addcmul(bias.to(r.dtype), rows.to(r.dtype), scale).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Optional[Tensor], ...]:
        rows, weight, divisor, r, count = ctx.saved_tensors
        if not ctx.counted:
            grad_y, rows = torch.zeros_like(grad_y), torch.zeros_like(rows)
        grad, x = grad_y.to(r.dtype), rows.to(r.dtype)
        inverse = (divisor + ctx.eps).rsqrt()
        dbias, dot = gradient_sums(grad, x)
        dot, scale = dot * inverse, weight.to(r.dtype) * r
        multiple, by = ctx.gradient(all_reduce_sum(dot * scale, ctx.sync) / count.clamp(min=1))
        outer = (by + ctx.eps).rsqrt()
        dx = (grad * (scale * outer)).addcmul_(x, multiple * inverse * outer, value=-1)
        dweight = (dot * r).to(weight.dtype)
        return dx.to(rows.dtype), dweight, dbias.to(weight.dtype), *(None,) * 8


_apply: Callable[..., Tensor] = _Normalise.apply
