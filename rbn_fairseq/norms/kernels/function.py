"""Batch norm by the kernels: in training one differentiable function, in evaluation one map."""

from collections.abc import Callable
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.kernels.backward import differentiate
from rbn_fairseq.norms.kernels.forward import Normalised, normalise_and_move
from rbn_fairseq.norms.kernels.parts import load_tile, tile_of, tiling

__all__ = ["normalise_rows", "transform", "uncompiled"]


class _Normalise(torch.autograd.Function):
    """(rows, weight, bias) -> (y, batch mean, batch variance), with all their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        settings: dict[str, Any],
    ) -> Normalised:
        rows = _channels_side_by_side(rows)
        with torch.cuda.device_of(rows):
            result = normalise_and_move(rows, weight, bias, *running, momentum=momentum, **settings)
        ctx.settings = settings
        ctx.save_for_backward(rows, weight, bias, result.mean, result.var, result.n)
        ctx.mark_non_differentiable(result.n, result.before, result.after)
        if isinstance(result.share, Tensor):
            ctx.mark_non_differentiable(result.share)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Optional[Tensor], grad_mean: Optional[Tensor], grad_var: Optional[Tensor],
        *_: None,
    ) -> tuple[Optional[Tensor], ...]:  # fmt: skip
        rows, weight, bias, mean, var, count = ctx.saved_tensors
        grad = torch.zeros_like(rows) if grad is None else _channels_side_by_side(grad)
        with torch.cuda.device_of(rows):
            gradients = differentiate(
                grad, rows, weight, bias, mean, var, count,
                None if grad_mean is None else grad_mean.contiguous(),
                None if grad_var is None else grad_var.contiguous(),
                **ctx.settings,
            )  # fmt: skip
        return *gradients, None, None, None


def _channels_side_by_side(rows: Tensor) -> Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()


def normalise_rows(
    rows: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor], *,
    momentum: float, eps: float, clamp: bool, sync: bool, counted: bool = True,
) -> Normalised:  # fmt: skip
    """Do what :func:`~rbn_fairseq.norms.kernels.forward.normalise_and_move` does, with gradients.

    They come for y, mean and variance, and go to rows, weight and bias.
    """
    settings = {"eps": eps, "clamp": clamp, "sync": sync, "counted": counted}
    return Normalised(*_Normalise.apply(rows, weight, bias, running, momentum, settings))


def _call(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return function(*arguments)


#: Calls a function outside of what is compiled: kernels are, and torch 2.11 fails on the records.
uncompiled: Callable[..., Tensor] = torch.compiler.disable(_call)


@triton.jit(do_not_specialize=["tokens"])
def _multiply_add(
    y, x, scale, shift, tokens, stride, C, blocks, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    rows, channels, here, inside = tile_of(tile, block, tokens, C, ROWS, CHANNELS)
    values = load_tile(x, stride, rows, channels, here, inside)
    factor = tl.load(scale + channels, mask=inside, other=0).to(tl.float32)
    summand = tl.load(shift + channels, mask=inside, other=0).to(tl.float32)
    at = y + rows[:, None] * C + channels[None, :]
    mapped = values * factor[None, :] + summand[None, :]
    tl.store(at, mapped, mask=here[:, None] & inside[None, :])


def transform(rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``rows * scale + shift``, computed in fp32, in the dtype of the rows; no gradient.

    Args:
        rows: ``(tokens, C)``, channels side by side.
        scale: ``(C,)``.
        shift: ``(C,)``.
    """
    (tokens, C), cut = rows.shape, tiling(*rows.shape)
    y = torch.empty_like(rows, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(rows):
        _multiply_add[cut.row_tiles * cut.blocks,](
            y, rows, scale, shift, tokens, rows.stride(0), C, cut.blocks, cut.rows, cut.channels
        )
    return y
