"""Which positions of a batch are real tokens."""

from functools import cached_property
from typing import Optional

import torch
from torch import Tensor

__all__ = ["ValidTokens"]


class ValidTokens:
    """The valid-token view of one batch, built once and shared by every norm of a pass.

    Norms work on *packed* rows of the flattened ``(tokens, C)`` activations. Packing drops the
    padding rows by an index where that is cheap (CPU) and zeroes them elsewhere: the length of
    an index depends on the data, so that making one would let a GPU wait for the host.

    Args:
        valid: boolean mask, True = real token, with the leading shape of the activations
            (``(T, B)`` for fairseq's time-first ``(T, B, C)``). ``None`` means that every
            position is a real token.
        drop: whether packing drops padding rows (True) or zeroes them (False).
            Default: dropped on the CPU.

    Raises:
        ValueError: if ``valid`` is not boolean.
    """

    def __init__(self, valid: Optional[Tensor] = None, drop: Optional[bool] = None) -> None:
        self.valid = valid
        self._padding: Optional[Tensor] = None  # (tokens, 1), True = padding
        self._index: Optional[Tensor] = None  # (valid tokens,)
        if valid is None:
            return
        if valid.dtype != torch.bool:
            raise ValueError(f"`valid` must be a boolean mask, but its dtype is {valid.dtype}.")
        if drop if drop is not None else valid.device.type == "cpu":
            self._index = valid.reshape(-1).nonzero().squeeze(1)
        else:
            self._padding = valid.reshape(-1, 1).logical_not()

    @cached_property
    def flat(self) -> Optional[Tensor]:
        """The mask of the flattened activations, ``(tokens,)``; ``None`` as in ``valid``."""
        return None if self.valid is None else self.valid.reshape(-1)

    @classmethod
    def from_padding_mask(cls, padding_mask: Optional[Tensor]) -> "ValidTokens":
        """Read fairseq's padding mask.

        Args:
            padding_mask: ``(B, T)``, True (or non-zero) = padding; ``None`` = no padding.
        """
        if padding_mask is None:
            return cls(None)
        return cls(padding_mask.to(torch.bool).logical_not().t())  # (T, B)

    @classmethod
    def none_of(cls, x: Tensor) -> "ValidTokens":
        """Return the view in which every position of ``x: (..., C)`` is padding."""
        return cls(torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device))

    def check(self, x: Tensor) -> None:
        """Refuse activations that this view does not describe.

        Raises:
            ValueError: if the mask's shape is not ``x``'s shape without the channels.
        """
        if self.valid is not None and self.valid.shape != x.shape[:-1]:
            raise ValueError(
                f"`tokens` describes positions of shape {tuple(self.valid.shape)}, but `x` has "
                f"shape {tuple(x.shape)}: all but its last axis must be the same."
            )

    def pack(self, rows: Tensor) -> Tensor:
        """Return ``rows: (tokens, C)`` without its padding: dropped, or zeroed in a copy."""
        if self._index is not None:
            return rows.index_select(0, self._index)
        if self._padding is not None:
            return rows.masked_fill(self._padding, 0)
        return rows

    def count(self, packed: Tensor) -> Tensor:
        """Return the number of real tokens, 0-dim, in the dtype and on the device of ``packed``."""
        if self._padding is not None:
            return self._padding.numel() - self._padding.sum(dtype=packed.dtype)
        return packed.new_full((), packed.shape[0])

    def zero_padding_(self, packed: Tensor) -> Tensor:
        """Zero, in place, what computing on packed rows has put at padding."""
        return packed if self._padding is None else packed.masked_fill_(self._padding, 0)

    def unpack_(self, packed: Tensor) -> Tensor:
        """Return ``(tokens, C)`` with zeros at padding; may reuse the memory of ``packed``."""
        if self._index is None or self.valid is None:
            return self.zero_padding_(packed)
        rows = packed.new_zeros(self.valid.numel(), packed.shape[1])
        return rows.index_copy_(0, self._index, packed)
