"""Which positions of a batch are real tokens."""

from functools import cached_property
from typing import Optional

import torch
from torch import Tensor

__all__ = ["ValidTokens"]


class ValidTokens:
    """The valid-token view of one batch, built once and shared by every norm of a pass.

    Norms work on the flattened ``(tokens, C)`` activations, most of them on *packed* rows. Packing
    drops the padding rows by an index where that is cheap (CPU) and zeroes them elsewhere: the
    length of an index depends on the data, so that making one would let a GPU wait for the host.
    Batch norm copies less: on the CPU it takes ``parts``, its kernels the ``flat`` mask.

    Args:
        valid: boolean mask, True = real token, with the leading shape of the activations
            (``(T, B)`` for fairseq's time-first ``(T, B, C)``). ``None`` means that every
            position is a real token.
        drop: whether packing drops padding rows (True) or zeroes them (False).
            Default: dropped on the CPU.

    Attributes:
        drops: whether packed rows are real tokens only.

    Raises:
        ValueError: if ``valid`` is not boolean.
    """

    def __init__(self, valid: Optional[Tensor] = None, drop: Optional[bool] = None) -> None:
        if valid is not None and valid.dtype != torch.bool:
            raise ValueError(f"`valid` must be a boolean mask, but its dtype is {valid.dtype}.")
        self.valid = valid
        self.drops = valid is None or (valid.is_cpu if drop is None else drop)
        # Not a cached property, whose lock torch's compiler cannot take.
        self._lengths: Optional[Tensor] = None

    # What follows is made when it is first asked for: evaluation asks for none of it.

    @cached_property
    def _padding(self) -> Tensor:
        assert self.valid is not None
        return self.valid.reshape(-1, 1).logical_not()  # (tokens, 1), True = padding

    @cached_property
    def _index(self) -> Tensor:
        assert self.valid is not None
        return self.valid.reshape(-1).nonzero().squeeze(1)  # (valid tokens,)

    @cached_property
    def _padding_index(self) -> Tensor:
        return self._padding.squeeze(1).nonzero().squeeze(1)  # (padding positions,)

    @cached_property
    def flat(self) -> Optional[Tensor]:
        """The mask of the flattened activations, ``(tokens,)``, dense; ``None`` as ``valid``."""
        return None if self.valid is None else self.valid.reshape(-1).contiguous()

    @cached_property
    def _runs(self) -> tuple[slice, Tensor]:
        """The longer one of the runs of real tokens before and behind all padding; the others."""
        assert self.valid is not None
        if len(self._padding_index) == 0:
            return slice(None), self._padding_index
        first, last = int(self._padding_index[0]), int(self._padding_index[-1])
        if first > self.valid.numel() - 1 - last:
            return slice(first), self._index[first:]
        behind = self.valid.numel() - 1 - last
        return slice(last + 1, None), self._index[: len(self._index) - behind]

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

    def lengths(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return the number of real tokens of every sentence, ``(B,)``.

        Args:
            shape: of the activations, ``(T, B, C)``.
            device: theirs.

        Raises:
            ValueError: if the activations have another number of axes.
        """
        if len(shape) != 3:
            raise ValueError(
                "Lengths of sentences are told from activations (T, B, C), but these have shape "
                f"{tuple(shape)}."
            )
        if self.valid is None:
            return torch.full((shape[1],), shape[0], device=device)
        if self._lengths is None:
            self._lengths = self.valid.sum(0)
        return self._lengths

    def pack(self, rows: Tensor) -> Tensor:
        """Return ``rows: (tokens, C)`` without its padding: dropped, or zeroed in a copy."""
        if self.valid is None:
            return rows
        if self.drops:
            return rows.index_select(0, self._index)
        return rows.masked_fill(self._padding, 0)

    def parts(self, rows: Tensor) -> list[Tensor]:
        """Return the real tokens of ``rows: (tokens, C)`` in one or two parts, copying only one.

        For the CPU. Batches are padded on one side: most real tokens are one run.
        """
        if self.valid is None:
            return [rows]
        run, others = self._runs
        parts = [rows[run], rows.index_select(0, others)]
        return [part for part in parts if len(part) > 0]

    def count(self, packed: Tensor) -> Tensor:
        """Return the number of real tokens, 0-dim, in the dtype and on the device of ``packed``."""
        if self.drops:
            return packed.new_full((), packed.shape[0])
        return self._padding.numel() - self._padding.sum(dtype=packed.dtype)

    def zero_padding_(self, packed: Tensor) -> Tensor:
        """Zero, in place, what computing on packed rows has put at padding."""
        if self.drops:
            return packed
        return packed.masked_fill_(self._padding, 0)

    def unpack_(self, packed: Tensor) -> Tensor:
        """Return ``(tokens, C)`` with zeros at padding; may reuse the memory of ``packed``."""
        if self.valid is None or not self.drops:
            return self.zero_padding_(packed)
        rows = packed.new_zeros(self.valid.numel(), packed.shape[1])
        return rows.index_copy_(0, self._index, packed)

    def clear(self, rows: Tensor) -> Tensor:
        """Return ``rows: (tokens, C)`` with zeros at padding."""
        return rows if self.valid is None else rows.masked_fill(self._padding, 0)

    def clear_(self, rows: Tensor) -> Tensor:
        """Put zeros at the padding of ``rows: (tokens, C)``, in place."""
        if self.valid is None:
            return rows
        if self.drops:
            return rows.index_fill_(0, self._padding_index, 0)
        return rows.masked_fill_(self._padding, 0)
