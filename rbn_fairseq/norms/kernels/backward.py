"""Batch norm in training, backward: sums of parts, their joining, dx; three launches.

The formulas are those of ``normalise.py``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rbn_fairseq.norms.kernels.parts import deviation, load_tile, tile_of, tiling
from rbn_fairseq.norms.moments import all_reduce_sum

__all__ = ["differentiate"]


@triton.jit(do_not_specialize=["tokens", "length"])
def _sums_of_parts(
    parts, grad, x, mean, tokens, grad_stride, stride, C, blocks, length,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    part, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    sums = tl.zeros((ROWS, CHANNELS), tl.float32)
    dots = tl.zeros((ROWS, CHANNELS), tl.float32)
    columns = block * CHANNELS + tl.arange(0, CHANNELS)
    centre = tl.load(mean + columns, mask=columns < C, other=0)
    for tile in tl.range(part * length, (part + 1) * length, num_stages=3):
        rows, channels, here, inside = tile_of(tile, block, tokens, C, ROWS, CHANNELS)
        g = load_tile(grad, grad_stride, rows, channels, here, inside)
        values = load_tile(x, stride, rows, channels, here, inside)
        sums += g
        dots += g * (values - centre[None, :])
    row = parts + part * 2 * C + columns
    tl.store(row, tl.sum(sums, 0), mask=columns < C)
    tl.store(row + C, tl.sum(dots, 0), mask=columns < C)


@triton.jit(do_not_specialize=["count"])
def _join_sums(
    sums, dweight, dbias, parts, count, weight, var, grad_mean, grad_var, C, eps,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channels < C
    lanes = tl.arange(0, PARTS)
    totals = tl.zeros((PARTS, CHANNELS), tl.float32)
    dots = tl.zeros((PARTS, CHANNELS), tl.float32)
    for first in range(0, count, PARTS):
        at = parts + (first + lanes)[:, None] * 2 * C + channels[None, :]
        there = (first + lanes < count)[:, None] & inside[None, :]
        totals += tl.load(at, mask=there, other=0)
        dots += tl.load(at + C, mask=there, other=0)
    total, dot = tl.sum(totals, 0), tl.sum(dots, 0)
    std = deviation(tl.load(var + channels, mask=inside, other=1), eps, CLAMP)
    scale = tl.load(weight + channels, mask=inside, other=0).to(tl.float32) / std
    tl.store(dbias + channels, total, mask=inside)
    tl.store(dweight + channels, dot / std, mask=inside)
    to_mean = tl.zeros((CHANNELS,), tl.float32)
    to_var = tl.zeros((CHANNELS,), tl.float32)
    if grad_mean is not None:
        to_mean = tl.load(grad_mean + channels, mask=inside, other=0)
    if grad_var is not None:
        to_var = tl.load(grad_var + channels, mask=inside, other=0)
    row = sums + channels
    tl.store(row, total * scale, mask=inside)
    tl.store(row + C, dot * scale, mask=inside)
    tl.store(row + 2 * C, to_mean, mask=inside)
    tl.store(row + 3 * C, to_var, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _dx(
    dx, grad, x, sums, weight, mean, var, n, tokens, grad_stride, stride, C, eps, blocks,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    rows, channels, here, inside = tile_of(tile, block, tokens, C, ROWS, CHANNELS)
    g = load_tile(grad, grad_stride, rows, channels, here, inside)
    values = load_tile(x, stride, rows, channels, here, inside)
    centre = tl.load(mean + channels, mask=inside, other=0)
    variance = tl.load(var + channels, mask=inside, other=1)
    std = deviation(variance, eps, CLAMP)
    scale = tl.load(weight + channels, mask=inside, other=0).to(tl.float32) / std
    row = sums + channels
    total = tl.load(row, mask=inside, other=0)
    dot = tl.load(row + C, mask=inside, other=0) / (std * std)
    if CLAMP:
        dot = tl.where(variance > eps, dot, 0.0)
    to_mean = tl.load(row + 2 * C, mask=inside, other=0)
    to_var = tl.load(row + 3 * C, mask=inside, other=0)
    count = tl.maximum(tl.load(n), 1.0)
    c = (to_mean - total) / count
    k = (2 * to_var - dot) / count
    result = scale[None, :] * g + k[None, :] * (values - centre[None, :]) + c[None, :]
    at = dx + rows[:, None] * C + channels[None, :]
    tl.store(at, result, mask=here[:, None] & inside[None, :])


def differentiate(
    grad: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, mean: Tensor,
    var: Tensor, count: Tensor, grad_mean: Tensor | None, grad_var: Tensor | None, *,
    eps: float, clamp: bool, sync: bool, counted: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of rows, weight and bias.

    Args:
        grad: gradient of y, ``(tokens, C)``, channels side by side.
        rows: ``(tokens, C)``, as in :func:`~rbn_fairseq.norms.kernels.forward.normalise_and_move`.
        weight: ``(C,)``.
        bias: ``(C,)``; only its dtype matters.
        mean: ``(C,)``, of the batch.
        var: ``(C,)``, of the batch.
        count: 0-dim, the number of tokens behind them.
        grad_mean: gradient of the mean, ``(C,)``, contiguous. ``None`` = 0.
        grad_var: gradient of the variance, ``(C,)``, contiguous. ``None`` = 0.
        eps: as in the forward.
        clamp: as in the forward.
        sync: the moments are of all processes: one collective of 4C numbers.
        counted: as in the forward; without, all gradients are 0.
    """
    if not counted:
        all_reduce_sum(mean.new_zeros(4, len(mean)), sync)
        return torch.zeros_like(rows), torch.zeros_like(weight), torch.zeros_like(bias)
    (tokens, C), cut = rows.shape, tiling(*rows.shape)
    strides = grad.stride(0), rows.stride(0)
    dx = torch.empty_like(rows, memory_format=torch.contiguous_format)
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    parts = torch.empty(cut.parts, 2 * C, dtype=torch.float32, device=rows.device)
    sums = parts.new_empty(4, C)
    _sums_of_parts[cut.parts * cut.blocks,](
        parts, grad, rows, mean, tokens, *strides, C, cut.blocks, cut.length, cut.rows,
        cut.channels,
    )  # fmt: skip
    _join_sums[cut.joiners,](
        sums, dweight, dbias, parts, cut.parts, weight, var, grad_mean, grad_var, C, eps,
        cut.lanes, cut.joined, clamp,
    )  # fmt: skip
    all_reduce_sum(sums, sync)
    _dx[cut.row_tiles * cut.blocks,](
        dx, grad, rows, sums, weight, mean, var, count, tokens, *strides, C, eps,
        cut.blocks, cut.rows, cut.channels, clamp,
    )  # fmt: skip
    return dx, dweight, dbias
