"""Layouts of batches: real tokens as rows, and the sentences that the rows belong to."""

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

__all__ = ["BatchLayout", "Tokens", "ValidTokens", "lay_out", "on_rows", "sentences_of"]


class BatchLayout:
    """Where the sentences of a batch lie in its rows ``(N, C)`` of real tokens.

    The rows of a sentence follow each other, as its tokens do; a sentence may have none. Made by
    :func:`lay_out`.

    Args:
        lengths: rows of each sentence, in the order of the rows, ``(B,)``.
        counts: the same, on the host.
        index: place of each row among the padded batch's flattened positions, ``(N,)``; ``None`` =
            there is no padded batch.
        positions: shape of those positions, such as ``(B, T)``.

    Attributes:
        lengths, counts, index, positions: as given.
        rows: N.
        sentences: which sentence each row is of, ``(N,)``, counted in the order of the rows.
    """

    def __init__(
        self,
        lengths: Tensor,
        counts: list[int],
        index: Optional[Tensor] = None,
        positions: Optional[torch.Size] = None,
    ) -> None:
        self.lengths, self.counts = lengths, counts
        self.index, self.positions = index, positions
        self.rows = sum(counts)
        self.sentences = torch.repeat_interleave(lengths, output_size=self.rows)

    def by_row(self, values: Tensor) -> Tensor:
        """Return ``values: (B, ...)`` of sentences for each of their rows, ``(N, ...)``."""
        if values.is_cpu:  # where the other function is slow
            return values.index_select(0, self.sentences)
        return values[self.sentences]  # unlike index_select its gradient sums in one order

    @classmethod
    def empty(cls, device: torch.device) -> "BatchLayout":
        """Return the layout of a batch without any sentence."""
        return cls(torch.zeros(0, dtype=torch.long, device=device), [])

    @classmethod
    def unpadded(cls, positions: torch.Size, device: torch.device) -> "BatchLayout":
        """Return the layout of ``(T, B)`` positions that are real tokens; without a wait."""
        length, sentences = positions
        index = torch.arange(length * sentences, device=device).view(positions).t().flatten()
        lengths = torch.full((sentences,), length, device=device)
        return cls(lengths, [length] * sentences, index, positions)

    def check(self, x: Tensor) -> None:
        """Refuse activations that this layout does not describe.

        Raises:
            ValueError: if ``x`` is not ``(N, C)``.
        """
        if x.dim() != 2 or x.shape[0] != self.rows:
            raise ValueError(
                f"`tokens` describes {self.rows} rows of real tokens, but `x` has shape "
                f"{tuple(x.shape)}: it must be ({self.rows}, channels)."
            )

    def offsets(self) -> Tensor:
        """Return the place of each row in its sentence, ``(N,)``, counted from 0."""
        first = self.lengths.cumsum(0) - self.lengths
        return torch.arange(self.rows, device=self.lengths.device) - self.by_row(first)

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums over the rows ``(N, C)`` of each sentence, ``(B, C)``; 0 without any."""
        if rows.is_cpu:  # where the other function is slow
            return rows.new_zeros(len(self.counts), rows.shape[1]).index_add(
                0, self.sentences, rows
            )
        # Unlike index_add it sums in one order. `unsafe`: a look at the lengths would wait.
        return torch.segment_reduce(rows, "sum", lengths=self.lengths, unsafe=True)

    def pack(self, padded: Tensor) -> Tensor:
        """Return the rows ``(N, ...)`` of a padded ``(*positions, ...)``."""
        assert self.index is not None and self.positions is not None
        return padded.flatten(0, len(self.positions) - 1).index_select(0, self.index)

    def unpack(self, rows: Tensor) -> Tensor:
        """Return rows ``(N, ...)`` put back to ``(*positions, ...)``; 0 at padding."""
        assert self.index is not None and self.positions is not None
        padded = rows.new_zeros(self.positions.numel(), *rows.shape[1:])
        return padded.index_copy(0, self.index, rows).view(*self.positions, *rows.shape[1:])


def lay_out(*sides: Tensor, time_first: bool = False) -> list[BatchLayout]:
    """Lay out the real tokens of a batch, its sentences sorted by their lengths.

    The one place where a GPU is waited for: the lengths of all sides come to the host together.

    Args:
        *sides: masks ``(B, T)``, True = real token, of the same sentences, such as those of source
            and target. Sorted is by the length in the first, then in the next; sentences of the
            same lengths stay in their order.
        time_first: the masks, and what is packed by them, are ``(T, B)``.

    Returns:
        A layout for each side.
    """
    masks = [valid.t() for valid in sides] if time_first else sides  # (B, T)
    lengths = torch.stack([mask.sum(1) for mask in masks])  # (sides, B)
    order = torch.arange(lengths.shape[1], device=lengths.device)
    for side in reversed(lengths):
        order = order[side[order].argsort(stable=True)]
    lengths = lengths[:, order]
    layouts = []
    for valid, mask, sizes, counts in zip(sides, masks, lengths, lengths.tolist(), strict=True):
        places = torch.arange(valid.numel(), device=valid.device).view(valid.shape)
        places = places.t() if time_first else places  # (B, T)
        index = _index(mask, places, order, sizes, sum(counts))
        layouts.append(BatchLayout(sizes, counts, index, valid.shape))
    return layouts


def _index(valid: Tensor, places: Tensor, order: Tensor, lengths: Tensor, rows: int) -> Tensor:
    """Return the places ``(N,)`` of the real tokens of ``valid: (B, T)``, sentences in order."""
    first = torch.empty_like(order)
    first[order] = lengths.cumsum(0) - lengths  # row of each sentence's first token
    row = first.unsqueeze(1) + valid.cumsum(1) - 1  # (B, T)
    row = row.where(valid, rows)  # padding: one more row, which is cut off
    return order.new_empty(rows + 1).scatter_(0, row.flatten(), places.flatten())[:rows]


class ValidTokens:
    """The real tokens of a padded batch: the door of the norms for padded tensors.

    Built once and shared by every norm of a pass. A norm whose statistics are over tokens packs the
    real ones into rows, normalises, and puts them back; at padding its output and its gradients are
    0. The first such norm of a pass waits for a GPU, which tells how many tokens are real. Where
    each token is normalised by itself, as in evaluation by running statistics, so is padding.

    Args:
        valid: boolean mask, True = real token, with the leading shape of the activations
            (``(T, B)`` for fairseq's time-first ``(T, B, C)``; activations of three axes are read
            as time first wherever sentences matter). ``None`` = every position is a real token.

    Raises:
        ValueError: if ``valid`` is not boolean.
    """

    def __init__(self, valid: Optional[Tensor] = None) -> None:
        if valid is not None and valid.dtype != torch.bool:
            raise ValueError(f"`valid` must be a boolean mask, but its dtype is {valid.dtype}.")
        self.valid = valid
        self._layout: Optional[BatchLayout] = None

    @classmethod
    def from_padding_mask(cls, padding_mask: Optional[Tensor]) -> "ValidTokens":
        """Read fairseq's padding mask.

        Args:
            padding_mask: ``(B, T)``, True (or non-zero) = padding; ``None`` = no padding.
        """
        if padding_mask is None:
            return cls(None)
        return cls(padding_mask.to(torch.bool).logical_not().t())  # (T, B)

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

    # Not a cached property, whose lock torch's compiler cannot take.
    def rows(self) -> BatchLayout:
        """Return where the real tokens lie in the rows.

        For masks of other shapes than ``(T, B)``, which have no sentences, they are one.
        """
        assert self.valid is not None
        if self._layout is None:
            mask = self.valid if self.valid.dim() == 2 else self.valid.reshape(-1, 1)
            with torch.inference_mode(False):  # it may serve a pass with gradients, too
                (self._layout,) = lay_out(mask, time_first=True)
        return self._layout


#: Layout or mask of the activations that a norm is given.
Tokens = BatchLayout | ValidTokens


def sentences_of(layout: Optional[BatchLayout]) -> BatchLayout:
    """Return the layout, which must be known.

    Raises:
        ValueError: if it is not.
    """
    if layout is None:
        raise ValueError(
            "This norm asks which sentence a token is of: give it activations (T, B, C), of one "
            "sentence (T, 1, C), or rows (N, C) together with their BatchLayout."
        )
    return layout


def on_rows(
    normalise: Callable[[Tensor, Optional[BatchLayout]], Tensor],
    x: Tensor,
    tokens: Optional[Tokens],
    by_sentence: bool = False,
) -> Tensor:
    """Apply a norm of rows to the real tokens of ``x``.

    Args:
        normalise: from rows ``(N, C)``, and where the sentences lie in them if that is known.
        x: ``(N, C)`` with a layout, or else ``(..., C)``.
        tokens: the real tokens of ``x``; ``None`` = all.
        by_sentence: whether the norm asks which sentence a row is of, so that the rows of each
            have to follow each other.

    Returns:
        Of the shape of ``x``; 0 at padding.

    Raises:
        ValueError: if ``tokens`` describes another shape than ``x``'s.
    """
    if tokens is not None:
        tokens.check(x)
    if isinstance(tokens, BatchLayout):
        return normalise(x, tokens)
    sentences = x.dim() == 3
    if tokens is not None and tokens.valid is not None:
        layout = tokens.rows()
    elif by_sentence and sentences:
        layout = BatchLayout.unpadded(x.shape[:-1], x.device)
    else:
        return normalise(x.reshape(-1, x.shape[-1]), None).view(x.shape)
    assert layout.positions is not None
    rows = layout.pack(x.reshape(*layout.positions, x.shape[-1]))
    return layout.unpack(normalise(rows, layout if sentences else None)).view(x.shape)
