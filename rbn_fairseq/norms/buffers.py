"""Buffers that half precision would ruin."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

__all__ = ["FullPrecision"]


class FullPrecision(nn.Module):
    """A module whose buffers stay fp32 (or fp64) when the model is cast to half precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` and the like: statistics in half precision overflow at 65504, and with a small
        # momentum they stop moving, so only the device follows.
        def at_least_fp32(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            dtype = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == dtype else buffer.to(moved.device, dtype)

        super()._apply(at_least_fp32, recurse)  # type: ignore[no-untyped-call]
        return self
