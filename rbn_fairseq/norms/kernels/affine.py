"""One multiply-add per element: batch norm in evaluation."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rbn_fairseq.norms.kernels import tiles
from rbn_fairseq.norms.kernels.parts import load_tile, tile_of

__all__ = ["transform"]


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
    (tokens, C), cut = rows.shape, tiles.tiling(*rows.shape)
    y = torch.empty_like(rows, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(rows):
        _multiply_add[cut.row_tiles * cut.blocks,](
            y, rows, scale, shift, tokens, rows.stride(0), C, cut.blocks, cut.rows, cut.channels
        )
    return y
