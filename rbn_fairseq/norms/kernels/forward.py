"""Batch norm in training, forward: moments of parts, their joining, the map; three launches."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rbn_fairseq.norms.kernels.parts import (
    deviation,
    join,
    join_parts,
    lerp,
    load_tile,
    merge,
    power_of_2,
    read_moments,
    tile_of,
    tiling,
    write_moments,
)
from rbn_fairseq.norms.moments import gather, process_rank, world_size

__all__ = ["Normalised", "normalise_and_move"]


class Normalised(NamedTuple):
    """What :func:`normalise_and_move` returns.

    y: ``(tokens, C)``; mean, var: ``(C,)``; n: 0-dim; before, after: ``(2, C)``, the running
    statistics around the update; share: as in :class:`~rbn_fairseq.norms.moments.Moments`.
    """

    y: Tensor
    mean: Tensor
    var: Tensor
    n: Tensor
    before: Tensor
    after: Tensor
    share: Tensor | float


@triton.jit(do_not_specialize=["tokens", "length"])
def _moments_of_parts(
    parts, x, tokens, stride, C, blocks, length, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    part, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    n = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, CHANNELS), tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in tl.range(part * length, (part + 1) * length, num_stages=3):
        rows, channels, here, inside = tile_of(tile, block, tokens, C, ROWS, CHANNELS)
        values = load_tile(x, stride, rows, channels, here, inside)
        n, mean, squares = merge(n, mean, squares, here.to(tl.float32), values, 0.0)
    total, joint, distances = join(n, mean, squares)
    channels = block * CHANNELS + tl.arange(0, CHANNELS)
    write_moments(parts, part, block, channels, C, total, joint, distances)


@triton.jit(do_not_specialize=["count", "rank"])
def _finish(
    table, notes, parts, count, rank, running_mean, running_var, momentum, C,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    channels = block * CHANNELS + tl.arange(0, CHANNELS)
    inside = channels < C
    n, mean, squares, holders = read_moments(parts, count, channels, C, PARTS, CHANNELS)
    old_mean = tl.load(running_mean + channels, mask=inside, other=0)
    old_var = tl.load(running_var + channels, mask=inside, other=0)
    mean = tl.where(n > 0, mean, old_mean)
    var = tl.where(n > 0, squares / tl.maximum(n, 1.0), old_var)
    new_mean = lerp(old_mean, mean, momentum)
    new_var = lerp(old_var, var, momentum)
    row = table + channels
    tl.store(row, mean, mask=inside)
    tl.store(row + C, var, mask=inside)
    tl.store(row + 2 * C, old_mean, mask=inside)
    tl.store(row + 3 * C, old_var, mask=inside)
    tl.store(row + 4 * C, new_mean, mask=inside)
    tl.store(row + 5 * C, new_var, mask=inside)
    infinite = float("inf")
    bad = inside & ~((tl.abs(new_mean) < infinite) & (tl.abs(new_var) < infinite))
    tl.store(notes + 2 + block, tl.max(bad.to(tl.float32), 0))
    if block == 0:
        local_n = tl.load(parts + rank * (2 * C + 1) + 2 * C)
        tl.store(notes, n)
        tl.store(notes + 1, tl.where(local_n > 0, 1.0, 0.0) / tl.maximum(holders, 1.0))


@triton.jit(do_not_specialize=["tokens"])
def _map(
    y, x, table, notes, weight, bias, running_mean, running_var, tokens, stride, C, eps, blocks,
    joiners, ROWS: tl.constexpr, CHANNELS: tl.constexpr, NOTES: tl.constexpr, CLAMP: tl.constexpr,
    MOVES: tl.constexpr,
):  # fmt: skip
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    rows, channels, here, inside = tile_of(tile, block, tokens, C, ROWS, CHANNELS)
    values = load_tile(x, stride, rows, channels, here, inside)
    mean = tl.load(table + channels, mask=inside, other=0)
    var = tl.load(table + C + channels, mask=inside, other=1)
    scale = tl.load(weight + channels, mask=inside, other=0).to(tl.float32)
    scale = scale / deviation(var, eps, CLAMP)
    shift = tl.load(bias + channels, mask=inside, other=0).to(tl.float32)
    mapped = (values - mean[None, :]) * scale[None, :] + shift[None, :]
    at = y + rows[:, None] * C + channels[None, :]
    tl.store(at, mapped, mask=here[:, None] & inside[None, :])
    if tile == 0:  # only here are the notes of all channels known
        note = tl.arange(0, NOTES)
        bad = tl.max(tl.load(notes + 2 + note, mask=note < joiners, other=0), 0)
        row = table + 2 * C + channels
        new_mean = tl.load(row + tl.where(bad > 0, 0, 2 * C), mask=inside)
        new_var = tl.load(row + tl.where(bad > 0, C, 3 * C), mask=inside)
        tl.store(row + 2 * C, new_mean, mask=inside)
        tl.store(row + 3 * C, new_var, mask=inside)
        if MOVES:
            tl.store(running_mean + channels, new_mean, mask=inside)
            tl.store(running_var + channels, new_var, mask=inside)


def normalise_and_move(
    rows: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor,
    running_var: Tensor, *, momentum: float, eps: float, clamp: bool, sync: bool,
    counted: bool = True,
) -> Normalised:  # fmt: skip
    """Normalise by the moments of the rows; move the running statistics, in place.

    They stay where any channel's would not be finite.

    Args:
        rows: ``(tokens, C)``, fp32, fp16 or bf16, channels side by side.
        weight: ``(C,)``.
        bias: ``(C,)``.
        running_mean: ``(C,)``, fp32.
        running_var: ``(C,)``, fp32.
        momentum: weight of the new value in the running statistics; 0 leaves them untouched.
        eps: keeps the standard deviation away from 0.
        clamp: sqrt(max(var, eps)) instead of sqrt(var + eps).
        sync: use the moments of all processes together: one collective of 2C + 1 numbers.
        counted: whether the moments are of these rows; else of no rows here.
    """
    (tokens, C), stride, cut = rows.shape, rows.stride(0), tiling(*rows.shape)
    y = torch.empty_like(rows, memory_format=torch.contiguous_format)
    parts = torch.empty(cut.parts, 2 * C + 1, dtype=torch.float32, device=rows.device)
    table, notes = parts.new_empty(6, C), parts.new_empty(2 + cut.joiners)
    _moments_of_parts[cut.parts * cut.blocks,](
        parts, rows, tokens if counted else 0, stride, C, cut.blocks, cut.length, cut.rows,
        cut.channels,
    )  # fmt: skip
    world, rank = world_size(sync), 0
    if world > 1:
        local = parts.new_empty(2 * C + 1)
        join_parts[cut.joiners,](local, parts, cut.parts, C, cut.lanes, cut.joined)
        parts, rank = gather(local), process_rank()
    _finish[cut.joiners,](
        table, notes, parts, parts.shape[0], rank, running_mean, running_var, momentum, C,
        cut.lanes, cut.joined,
    )  # fmt: skip
    _map[cut.row_tiles * cut.blocks,](
        y, rows, table, notes, weight, bias, running_mean, running_var, tokens, stride, C, eps,
        cut.blocks, cut.joiners, cut.rows, cut.channels, power_of_2(cut.joiners),
        clamp, momentum != 0,
    )  # fmt: skip
    for statistics in (running_mean, running_var):
        if momentum != 0 and not statistics.is_inference():  # these have no version
            torch.autograd.graph.increment_version(statistics)
    share = notes[1] if world > 1 else 1.0
    return Normalised(y, table[0], table[1], notes[0], table[2:4], table[4:6], share)
