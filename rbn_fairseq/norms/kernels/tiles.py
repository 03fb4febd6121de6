"""How the kernels of batch norm cut ``(tokens, C)`` into tiles."""

from typing import NamedTuple

__all__ = ["Tiling", "tiling"]

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
    by one program for each block; joined: channels of a program that joins the parts;
    joiners: the number of those programs.
    """

    rows: int
    channels: int
    blocks: int
    row_tiles: int
    parts: int
    length: int
    joined: int
    joiners: int


def tiling(tokens: int, channels: int) -> Tiling:
    """Return the cut for so many tokens and channels: a function of nothing else.

    Without tokens there is one tile all the same, as statistics of other processes may move.
    """
    width = min(CHANNELS, _power_of_2(channels))
    rows = max(1, ELEMENTS // width)
    blocks = _ceil(channels, width)
    row_tiles = max(1, _ceil(tokens, rows))
    length = _ceil(row_tiles, max(1, PROGRAMS // blocks))
    joined = min(JOINED_CHANNELS, width)
    return Tiling(
        rows, width, blocks, row_tiles, _ceil(row_tiles, length), length, joined,
        _ceil(channels, joined),
    )  # fmt: skip


def _ceil(size: int, step: int) -> int:
    return -(-size // step)


def _power_of_2(least: int) -> int:
    return 1 << (least - 1).bit_length()
