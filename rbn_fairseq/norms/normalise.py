"""Normalisation by the moments of a batch, as one differentiable function."""

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.moments import all_reduce_sum, world_size
from rbn_fairseq.norms.reductions import gradient_sums

__all__ = ["normalise"]


class _Normalise(torch.autograd.Function):
    """(x, weight, bias) -> (y, batch mean, batch variance), with all their gradients.

    The moments come in ready, because they also serve elsewhere; they are functions of x, unless
    its rows are not ``counted``: these have no gradients.

    A penalty on the batch statistics reaches x only through mean and variance, so that its
    gradient folds into the elementwise backward: with s the standard deviation and n the number of
    tokens behind the moments,

        dx = (weight / s) g + k (x - mean) + c,
        c = dmean / n - (weight / s) mean(g),
        k = 2 dvar / n - (weight / s^3) mean(g (x - mean))

    (the last mean is left out of k where a clamp has made s a constant).
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,  # (N, C)
        weight: Tensor,
        bias: Tensor,
        batch_mean: Tensor,
        batch_var: Tensor,
        count: Tensor,
        counted: bool,
        norm: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.counted, ctx.sync, ctx.options = counted, norm.sync, norm.options
        ctx.dtypes = weight.dtype, bias.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, weight, batch_mean, batch_var, count)
        y = _map(rows, weight, bias, batch_mean, batch_var, norm.options)
        return y, batch_mean, batch_var  # as views, which have gradients

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_y: Optional[Tensor],
        grad_mean: Optional[Tensor],
        grad_var: Optional[Tensor],
    ) -> tuple[Optional[Tensor], ...]:
        rows, weight, mean, var, n = ctx.saved_tensors
        options, dtypes = ctx.options, ctx.dtypes
        if not ctx.counted:  # the moments are no function of these rows
            zeros = torch.zeros(4, len(mean), dtype=mean.dtype, device=mean.device)
            all_reduce_sum(zeros, ctx.sync)
            weight_grad, bias_grad = (torch.zeros_like(mean, dtype=dtype) for dtype in dtypes)
            return torch.zeros_like(rows), weight_grad, bias_grad, *[None] * 5
        grad = torch.zeros_like(rows) if grad_y is None else grad_y
        grad, x = grad.to(mean.dtype), rows.to(mean.dtype)
        weight, inverse = weight.to(mean.dtype), options.std(var).reciprocal()
        dbias, dweight = gradient_sums(grad, x, mean, inverse)
        scale = weight * inverse
        c, k = -scale * dbias, -scale * inverse * dweight
        if world_size(ctx.sync) > 1:
            rest = [torch.zeros_like(mean) if g is None else g for g in (grad_mean, grad_var)]
            sums = torch.stack([c, k, *rest])  # (4, C)
            c, k, grad_mean, grad_var = all_reduce_sum(sums, ctx.sync).unbind()
        if options.eps_mode == "clamp":
            k = k * (var > options.eps)
        if grad_mean is not None:
            c = c + grad_mean
        if grad_var is not None:
            k = k + 2 * grad_var
        n = n.clamp(min=1)
        c, k = c / n, k / n
        dx = torch.addcmul(torch.addcmul(c, k, mean, value=-1), x, k).addcmul_(grad, scale)
        return dx.to(rows.dtype), dweight.to(dtypes[0]), dbias.to(dtypes[1]), *[None] * 5


def _map(
    rows: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, options: Any
) -> Tensor:
    """Return ``(rows - mean) / std * weight + bias``."""
    alike = rows.dtype == weight.dtype == bias.dtype == mean.dtype
    if rows.is_cpu and alike and options.eps_mode == "add":
        return torch.native_batch_norm(rows, weight, bias, mean, var, False, 0.0, options.eps)[0]
    scale = weight.to(mean.dtype) / options.std(var)
    shift = torch.addcmul(bias.to(mean.dtype), mean, scale, value=-1)
    return torch.addcmul(shift, rows, scale).to(rows.dtype)


normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Normalise.apply
