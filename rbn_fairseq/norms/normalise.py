"""The maps of batch norm: by the moments of a batch, differentiably, and by given statistics."""

from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms import moments
from rbn_fairseq.norms.moments import all_reduce_sum, world_size

__all__ = [
    "block_rows", "by_blocks", "gradient_sums", "multiply_add", "normalise", "on_wide_rows",
    "standard_deviation",
]  # fmt: skip

#: Numbers of a block, which a CPU's last cache holds while several operations pass over it.
BLOCK = 2**18


def block_rows(tensor: Tensor) -> Optional[int]:
    """Return how many rows of ``(N, C)`` make a block; ``None`` on a GPU and for compilers."""
    if not tensor.is_cpu or torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]
        return None
    return max(1, BLOCK // tensor.shape[1])


def by_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of tensors of as many rows: block by block, or where there are none, all."""
    size = block_rows(tensors[0])
    return iter([tensors]) if size is None else zip(*(t.split(size) for t in tensors), strict=True)


def on_wide_rows(function: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    """Call a function of rows ``(N, C)`` and arguments, all tensors in fp32 or better.

    Returns:
        What it returns, ``(N, C)``, in the shape and dtype of ``x: (..., C)``.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    rows = x.reshape(-1, x.shape[-1]).to(dtype)
    wide = (a.to(dtype) if isinstance(a, Tensor) else a for a in arguments)
    return function(rows, *wide).view(x.shape).to(x.dtype)


def standard_deviation(var: Tensor, eps: float, clamp: bool) -> Tensor:
    """Return what normalises: ``sqrt(var + eps)``, with ``clamp`` ``sqrt(max(var, eps))``."""
    return (var.clamp(min=eps) if clamp else var + eps).sqrt()


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

    (the last mean is left out of k where a clamp has made s a constant). With ``eta``, ``(1,)``,
    ``eta x`` is added to y, in the same passes: by weight + eta s and bias + eta mean.

    On a GPU y, and dx where no penalty, other process or ``eta`` is part of it, are of the
    operations of torch's SyncBatchNorm: one launch each, also in half precision.
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
        sync: bool,
        eps: float,
        clamp: bool,
        eta: Optional[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.counted, ctx.sync, ctx.eps, ctx.clamp = counted, sync, eps, clamp
        ctx.dtypes = weight.dtype, bias.dtype
        ctx.set_materialize_grads(False)
        inverse = None
        if _gpu_serves(rows, weight, bias):
            inverse = standard_deviation(batch_var, eps, clamp).reciprocal()
        ctx.save_for_backward(rows, weight, batch_mean, batch_var, count, eta, inverse)
        if eta is not None:
            eta = eta.to(batch_mean.dtype)
            weight = weight + eta * standard_deviation(batch_var, eps, clamp)
            bias = bias + eta * batch_mean
        if inverse is None:
            y = _map(rows, weight, bias, batch_mean, batch_var, eps, clamp)
        else:
            y = torch.batch_norm_elemt(rows, weight, bias, batch_mean, inverse, eps)
        return y, batch_mean, batch_var  # as views, which have gradients

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_y: Optional[Tensor], grad_mean: Optional[Tensor], grad_var: Optional[Tensor]
    ) -> tuple[Optional[Tensor], ...]:
        rows, weight, mean, var, n, eta, inverse = ctx.saved_tensors
        dtypes = ctx.dtypes
        if not ctx.counted:  # the moments are no function of these rows
            zeros = torch.zeros(4, len(mean), dtype=mean.dtype, device=mean.device)
            all_reduce_sum(zeros, ctx.sync)
            weight_grad, bias_grad = (torch.zeros_like(mean, dtype=dtype) for dtype in dtypes)
            eta_grad = None if eta is None else torch.zeros_like(eta)
            return torch.zeros_like(rows), weight_grad, bias_grad, *[None] * 7, eta_grad
        plain = world_size(ctx.sync) == 1 and eta is grad_mean is grad_var is None
        if plain and inverse is not None and grad_y is not None:
            grad = grad_y.contiguous()
            total, dot, dweight, dbias = torch.batch_norm_backward_reduce(
                grad, rows, mean, inverse, weight, True, True, True
            )
            if ctx.clamp:
                dot = dot * (var > ctx.eps)
            dx = torch.batch_norm_backward_elemt(
                grad, rows, mean, inverse, weight, total, dot, n.to(torch.int32).view(1)
            )
            return dx, dweight, dbias, *[None] * 8
        grad = torch.zeros_like(rows) if grad_y is None else grad_y.contiguous()
        grad, x = moments.wide(grad), moments.wide(rows)
        if inverse is None:
            inverse = standard_deviation(var, ctx.eps, ctx.clamp).reciprocal()
        weight = weight.to(mean.dtype)
        dbias, dweight = gradient_sums(grad, x, mean, inverse)
        scale = weight * inverse
        c, k = -scale * dbias, -scale * inverse * dweight
        if world_size(ctx.sync) > 1:
            rest = [torch.zeros_like(mean) if g is None else g for g in (grad_mean, grad_var)]
            sums = torch.stack([c, k, *rest])  # (4, C)
            c, k, grad_mean, grad_var = all_reduce_sum(sums, ctx.sync).unbind()
        if ctx.clamp:
            k = k * (var > ctx.eps)
        if grad_mean is not None:
            c = c + grad_mean
        if grad_var is not None:
            k = k + 2 * grad_var
        n = n.clamp(min=1)
        c, k = c / n, k / n
        deta = None
        if eta is not None:
            deta = (dweight / inverse + dbias * mean).sum().view(1).to(eta.dtype)
            scale = scale + eta.to(mean.dtype)
        dx = torch.addcmul(torch.addcmul(c, k, mean, value=-1), x, k)
        out = dx if dx.dtype == rows.dtype else torch.empty_like(rows)
        torch.addcmul(dx, grad, scale, out=out)
        return out, dweight.to(dtypes[0]), dbias.to(dtypes[1]), *[None] * 7, deta


def _gpu_serves(rows: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Tell whether the operations of torch's SyncBatchNorm, which GPUs have, take these."""
    dtypes = rows.dtype, torch.promote_types(rows.dtype, torch.float32)
    fits = weight.dtype == bias.dtype and weight.dtype in dtypes
    return rows.is_cuda and rows.numel() > 0 and fits


def _map(
    rows: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, clamp: bool
) -> Tensor:
    """Return ``(rows - mean) / std * weight + bias``."""
    alike = rows.dtype == weight.dtype == bias.dtype == mean.dtype
    if rows.is_cpu and alike and not clamp:
        return torch.native_batch_norm(rows, weight, bias, mean, var, False, 0.0, eps)[0]
    scale = weight.to(mean.dtype) / standard_deviation(var, eps, clamp)
    shift = torch.addcmul(bias.to(mean.dtype), mean, scale, value=-1)
    return torch.addcmul(shift, rows, scale).to(rows.dtype)


def gradient_sums(
    grad: Tensor, rows: Tensor, mean: Optional[Tensor] = None, inverse_std: Optional[Tensor] = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of bias and weight, ``(C,)``, of ``grad`` and ``rows: (N, C)``.

    They are the sums over rows of ``grad`` and of ``grad * (rows - mean) * inverse_std``; without
    the last two, of ``grad`` and of ``grad * rows``.
    """
    kernels_serve = moments.has_kernels(rows)
    if mean is None or inverse_std is None:
        if not kernels_serve:
            return grad.sum(0), (grad * rows).sum(0)
        mean, inverse_std = rows.new_zeros(rows.shape[1]), rows.new_ones(rows.shape[1])
    if kernels_serve:
        # Of the weight, the third, only the dtype is read.
        _, dot, total = torch.ops.aten.native_batch_norm_backward(
            grad, rows, inverse_std, None, None, mean, inverse_std, True, 0.0, [False, True, True]
        )
        return total, dot
    return grad.sum(0), (grad * (rows - mean)).sum(0) * inverse_std


normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Normalise.apply


def multiply_add(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``x * scale + shift``, computed in the precision of the scale, in the dtype of ``x``.

    Args:
        x: ``(..., C)``.
        scale: ``(C,)``, fp32 or fp64; ``(N, C)`` where rows ``(N, C)`` have their own.
        shift: ``(C,)``, likewise.
    """
    # A GPU casts in the same launch; gradients, and those who record operations, must know of it.
    recorded = (
        torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined]
    )
    if x.dtype == scale.dtype or recorded or not x.is_cuda:
        return torch.addcmul(shift, x, scale).to(x.dtype)
    return torch.addcmul(shift, x, scale, out=torch.empty_like(x))
