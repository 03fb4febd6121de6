"""Tiles of ``(tokens, C)``, and functions that the kernels share."""

from typing import NamedTuple

import triton
import triton.language as tl

__all__ = [
    "Tiling", "deviation", "join", "join_parts", "lerp", "load_tile", "merge", "power_of_2",
    "read_moments", "tile_of", "tiling", "write_moments",
]  # fmt: skip

# A tile has 16 elements for each of 128 threads. 64 channels of half precision are a whole cache
# line of 128 bytes. Programs that reduce hold some 90 registers a thread and three tiles in
# flight: 512 of them are four for each of some 130 multiprocessors, all at once, and few enough
# parts that joining them is short. 4096 tokens of 512 channels make 64 parts of 8 blocks: all 512.
ELEMENTS = 2048
CHANNELS = 64
PROGRAMS = 512
# Joining: each program reads tiles of 128 parts and 64 bytes of their rows.
JOINED_PARTS = 128
JOINED_CHANNELS = 16


class Tiling(NamedTuple):
    """A cut of ``(tokens, C)``.

    rows, channels: size of a tile, powers of 2; blocks: tiles side by side, over the channels;
    row_tiles: tiles over the tokens; parts: runs of ``length`` of them, each of which is reduced
    by one program for each block; lanes, joined: parts and channels that a program which joins
    parts holds at a time; joiners: the number of those programs.
    """

    rows: int
    channels: int
    blocks: int
    row_tiles: int
    parts: int
    length: int
    lanes: int
    joined: int
    joiners: int


def power_of_2(least: int) -> int:
    """Return the lowest power of 2 that is not below ``least``, which is 1 or more."""
    return 1 << (least - 1).bit_length()  # 20 times as fast as triton's


def _parts(whole: int, size: int) -> int:
    return -(-whole // size)


def tiling(tokens: int, channels: int) -> Tiling:
    """Return the cut for so many tokens and channels: a function of nothing else.

    Without tokens there is one tile all the same, as statistics of other processes may move.
    """
    width = min(CHANNELS, power_of_2(channels))
    rows = max(1, ELEMENTS // width)
    blocks = _parts(channels, width)
    row_tiles = max(1, _parts(tokens, rows))
    length = _parts(row_tiles, max(1, PROGRAMS // blocks))
    joined = min(JOINED_CHANNELS, width)
    return Tiling(
        rows, width, blocks, row_tiles, _parts(row_tiles, length), length, JOINED_PARTS,
        joined, _parts(channels, joined),
    )  # fmt: skip


@triton.jit
def tile_of(tile, block, tokens, C, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return rows and channels of a tile, and which of them there are."""
    rows = tile * ROWS + tl.arange(0, ROWS).to(tl.int64)
    channels = block * CHANNELS + tl.arange(0, CHANNELS)
    return rows, channels, rows < tokens, channels < C


@triton.jit
def load_tile(values, stride, rows, channels, here, inside):
    """Return a tile in fp32."""
    at = values + rows[:, None] * stride + channels[None, :]
    return tl.load(at, mask=here[:, None] & inside[None, :], other=0).to(tl.float32)


@triton.jit
def deviation(var, eps, CLAMP: tl.constexpr):
    """Return the standard deviation that normalises by."""
    return tl.sqrt(tl.where(var < eps, eps, var) if CLAMP else var + eps)


@triton.jit
def lerp(old, new, weight):
    """Return ``old + weight * (new - old)``: exactly ``new`` at weight 1, as torch's lerp does."""
    near_old = old + weight * (new - old)
    return tl.where(weight < 0.5, near_old, new - (new - old) * (1 - weight))


@triton.jit
def merge(n, mean, squares, n_new, mean_new, squares_new):
    """Merge lane by lane: counts ``(lanes,)``, means, sums of squared distances ``(lanes, C)``.

    Chan, Golub, LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample
    variances", Eq. 2.1. Where nothing is new, the new mean must be finite.
    """
    total = n + n_new
    part = (n_new / tl.maximum(total, 1.0))[:, None]
    distance = mean_new - mean
    between = distance * distance * part * n[:, None]
    return total, mean + distance * part, squares + squares_new + between


@triton.jit
def join(n, mean, squares):
    """Join the lanes by the same formula, for all of them at once."""
    total = tl.sum(n, 0)
    part = (n / tl.maximum(total, 1.0))[:, None]
    rounded = tl.sum(mean * part, 0)
    joint = rounded + tl.sum((mean - rounded[None, :]) * part, 0)
    distance = mean - joint[None, :]
    return total, joint, tl.sum(squares + distance * distance * n[:, None], 0)


@triton.jit
def write_moments(parts, part, block, channels, C, n, mean, squares):
    """Write row ``part`` of ``parts``: mean, sum of squared distances ``(C,)``, count."""
    row = parts + part * (2 * C + 1)
    tl.store(row + channels, mean, mask=channels < C)
    tl.store(row + C + channels, squares, mask=channels < C)
    if block == 0:
        tl.store(row + 2 * C, n)


@triton.jit
def read_moments(parts, count, channels, C, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return count, mean, sum of squared distances, and the number of parts with tokens."""
    lanes = tl.arange(0, PARTS)
    inside = (channels < C)[None, :]
    n = tl.zeros((PARTS,), tl.float32)
    holders = tl.zeros((PARTS,), tl.float32)
    mean = tl.zeros((PARTS, CHANNELS), tl.float32)
    squares = tl.zeros((PARTS, CHANNELS), tl.float32)
    for first in range(0, count, PARTS):
        there = first + lanes < count
        row = parts + (first + lanes) * (2 * C + 1)
        at = row[:, None] + channels[None, :]
        n_new = tl.load(row + 2 * C, mask=there, other=0)
        mean_new = tl.load(at, mask=there[:, None] & inside, other=0)
        squares_new = tl.load(at + C, mask=there[:, None] & inside, other=0)
        holders += tl.where(n_new > 0, 1.0, 0.0)
        n, mean, squares = merge(n, mean, squares, n_new, mean_new, squares_new)
    total, joint, distances = join(n, mean, squares)
    return total, joint, distances, tl.sum(holders, 0)


@triton.jit(do_not_specialize=["count"])
def join_parts(joined, parts, count, C, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """Join ``count`` rows of moments into one; a kernel of its own."""
    block = tl.program_id(0)
    channels = block * CHANNELS + tl.arange(0, CHANNELS)
    n, mean, squares, _ = read_moments(parts, count, channels, C, PARTS, CHANNELS)
    write_moments(joined, 0, block, channels, C, n, mean, squares)
