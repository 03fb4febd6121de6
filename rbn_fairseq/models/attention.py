"""Attention of rows of real tokens: sentences in groups by length, or all in one launch."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from rbn_fairseq.norms import BatchLayout

__all__ = ["Attention", "DecodingAttention", "PackedAttention"]

logger = logging.getLogger(__name__)

# Sentences of unlike lengths make a group, for which keys are masked, while its rows are few: their
# attention takes as long as the launches of a group. The longest may be so many times longer.
_FEW_AND_LONGER = {"cpu": (256, 1.25), "cuda": (4096, inf)}
# How much longer targets of sources of one length may be, and how many positions, padding counted,
# a group of unlike lengths may have for each of the few rows.
_LONGER, _PADDED = 1.25, 4

_logged: set[str] = set()


class Rows(NamedTuple):
    """The rows of one group of sentences on one side of an attention.

    Attributes:
        sentences: B.
        longest: T.
        rows: their number.
        index: place of each row among ``B * T``; ``None`` where all sentences have T.
        lengths: of the sentences, ``(B,)``.
    """

    sentences: int
    longest: int
    rows: int
    index: Optional[Tensor]
    lengths: Tensor

    def spread(self, rows: Tensor, heads: int) -> Tensor:
        """Return ``rows: (N, C)`` as ``(B, heads, T, C / heads)``, padded behind with 0."""
        if self.index is not None:
            padded = rows.new_zeros(self.sentences * self.longest, rows.shape[1])
            padded[self.index] = rows  # unlike index_copy, it does not keep them for the backward
            rows = padded
        shape = self.sentences, self.longest, heads, rows.shape[1] // heads  # -1 fails without rows
        return rows.view(shape).transpose(1, 2)

    def gather(self, spread: Tensor) -> Tensor:
        """Return the rows ``(N, ...)`` of ``(B, heads, T, D)``, as ``(N, heads, D)``."""
        rows = spread.transpose(1, 2).flatten(0, 1)
        return rows if self.index is None else rows.index_select(0, self.index)

    def mask(self) -> Optional[Tensor]:
        """Return which keys there are, ``(B, 1, 1, T)``; ``None`` = all."""
        if self.index is None:
            return None
        places = torch.arange(self.longest, device=self.lengths.device)
        return (places < self.lengths.unsqueeze(1))[:, None, None]


def cut_groups(source: Sequence[int], target: Sequence[int], few: int, longer: float) -> list[int]:
    """Cut sentences, sorted by their lengths on both sides, into groups.

    Returns:
        Where groups begin, and the number of sentences.
    """
    cuts, rows, longest = [0], 0, 0
    for place in range(1, len(source)):
        first = cuts[-1]
        rows += source[place - 1] + target[place - 1]
        longest = max(longest, target[place - 1], target[place])
        padded = (place + 1 - first) * (source[place] + longest)
        alike = source[place] == source[first] and target[place] <= _LONGER * target[first]
        near = 0 < source[first] and source[place] <= longer * source[first] + 1
        if not alike and (rows >= few or not near or padded > _PADDED * few):
            cuts.append(place)
            rows = longest = 0
    return [*cuts, len(source)]


class Side:
    """The rows of one side of an attention: of its groups, and of its sentences.

    Attributes:
        groups: in the order of the rows.
        longest: rows of the longest sentence.
        starts: first row of each sentence, and the end, ``(B + 1,)``, int32.
    """

    def __init__(self, layout: BatchLayout, cuts: Sequence[int]) -> None:
        self.groups: list[Rows] = []
        self.longest = max(layout.counts, default=0)
        self.starts = F.pad(layout.lengths.cumsum(0), (1, 0)).to(torch.int32)
        row, spread, offsets = 0, 0, layout.offsets()
        for first, end in pairwise(cuts):
            counts = layout.counts[first:end]
            longest, rows, index = max(counts, default=0), sum(counts), None
            if rows < longest * len(counts):
                group = slice(row, row + rows)
                index = (layout.sentences[group] - first) * longest + offsets[group]
                spread += rows
            self.groups.append(Rows(len(counts), longest, rows, index, layout.lengths[first:end]))
            row += rows
        self._mostly_spread = 2 * spread > layout.rows

    def split(self, rows: Tensor) -> list[Tensor]:
        """Return the rows ``(N, C)`` of each group.

        Where most are to be spread, the others are copies, too: kept for the backward, a view
        would keep the memory of all rows beside what is spread.
        """
        parts = rows.split([group.rows for group in self.groups])
        return [
            part.clone() if self._mostly_spread and group.index is None else part
            for part, group in zip(parts, self.groups, strict=True)
        ]


def by_varlen(rows: Tensor, heads: int, dropout: float) -> bool:
    """Choose how rows attend: all sentences in one launch, or group by group.

    torch's attention of sentences of many lengths is for GPUs, half precision, heads of a multiple
    of 8 channels up to 256, and no dropout.
    """
    chosen = (
        rows.is_cuda
        and rows.dtype in (torch.float16, torch.bfloat16)
        and dropout == 0
        and rows.shape[1] % (8 * heads) == 0
        and rows.shape[1] <= 256 * heads
        and torch.cuda.get_device_capability(rows.device) >= (8, 0)
    )
    way = "in one launch (varlen_attn)" if chosen else "in groups of sentences by length"
    if way not in _logged:
        _logged.add(way)
        logger.info("attention: %s", way)
    return chosen


@contextmanager
def without_cudnn(rows: Tensor) -> Iterator[None]:
    """Do without cuDNN's attention, which plans every new shape, and nearly every batch has some.

    It is torch's first choice on GPUs of compute capability 9.0 and 10.0.
    """
    chosen = rows.is_cuda and torch.backends.cuda.cudnn_sdp_enabled()
    if chosen:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if chosen:
            torch.backends.cuda.enable_cudnn_sdp(True)


def _attend(
    attention: Any, q: Tensor, k: Tensor, v: Tensor, queries: Side, keys: Side, causal: bool
) -> Tensor:
    """Return fairseq's ``MultiheadAttention`` of rows, ``(N, C)``.

    Args:
        attention: fairseq's module.
        q: queries, ``(N, C)``.
        k: keys, ``(M, C)``.
        v: values, ``(M, C)``.
        queries: N rows.
        keys: M rows.
        causal: each row attends to the rows of its sentence up to itself alone.
    """
    heads, module = attention.num_heads, attention.dropout_module
    dropout = module.p if module.training or module.apply_during_inference else 0.0
    if by_varlen(q, heads, dropout):
        apart = (rows.unflatten(1, (heads, -1)) for rows in (q, k, v))
        window = (-1, 0) if causal else (-1, -1)
        y = varlen_attn(
            *apart, queries.starts, keys.starts, queries.longest, keys.longest, window_size=window
        )
        return attention.out_proj(y.flatten(1))
    parts = []
    split = queries.split(q), keys.split(k), keys.split(v)
    with without_cudnn(q):
        for of_queries, of_keys, *rows in zip(queries.groups, keys.groups, *split, strict=True):
            if of_queries.rows == 0 or of_keys.rows == 0:  # nothing to attend to
                # With a graph: in their backward, norms in front of it may wait for each other.
                parts.append(torch.zeros_like(rows[0]) + sum(part[:0].sum() for part in rows))
                continue
            y = F.scaled_dot_product_attention(
                of_queries.spread(rows[0], heads),
                of_keys.spread(rows[1], heads),
                of_keys.spread(rows[2], heads),
                attn_mask=None if causal else of_keys.mask(),
                dropout_p=dropout,
                is_causal=causal,  # keys are padded behind, so that no query sees padding
            )
            parts.append(of_queries.gather(y).flatten(1))
    return attention.out_proj(torch.cat(parts))


class PackedAttention:
    """The attentions of one batch of rows.

    Args:
        source: layout of the encoder's rows.
        target: layout of the decoder's rows.
        memory: the encoder's output, ``(N, C)``; ``None`` = there is none to attend to.
        causal: whether the decoder's rows see those behind them.
    """

    def __init__(
        self,
        source: BatchLayout,
        target: Optional[BatchLayout] = None,
        memory: Optional[Tensor] = None,
        causal: bool = True,
    ) -> None:
        self.memory, self._causal = memory, causal and target is not None
        limits = _FEW_AND_LONGER["cuda" if source.lengths.is_cuda else "cpu"]
        cuts = cut_groups(source.counts, (target or source).counts, *limits)
        self._source = Side(source, cuts)
        self._target = self._source if target is None else Side(target, cuts)

    def within(self, attention: Any, x: Tensor) -> Tensor:
        """Attend from rows ``(N, C)`` to those of the same sentence."""
        q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
        return _attend(attention, q, k, v, self._target, self._target, self._causal)

    def across(self, attention: Any, x: Tensor, weights: bool) -> tuple[Tensor, Optional[Tensor]]:
        """Attend from rows ``(N, C)`` to the memory's of the same sentence.

        Returns:
            ``(N, C)``; and if ``weights``, how the rows attend, ``(N, heads, S)``: S counts the
            tokens of the longest source sentence, 0 behind the end of a shorter one.
        """
        assert self.memory is not None
        q, memory = attention.q_proj(x), self.memory
        k, v = attention.k_proj(memory), attention.v_proj(memory)
        y = _attend(attention, q, k, v, self._target, self._source, causal=False)
        return y, self._weights(attention, q, k) if weights else None

    @torch.no_grad()
    def _weights(self, attention: Any, q: Tensor, k: Tensor) -> Tensor:
        heads, parts = attention.num_heads, []
        split = self._target.split(q), self._source.split(k)
        groups = self._target.groups, self._source.groups
        for of_queries, of_keys, *rows in zip(*groups, *split, strict=True):
            queries, keys = of_queries.spread(rows[0], heads), of_keys.spread(rows[1], heads)
            scores = queries @ keys.transpose(2, 3)
            scores = scores.float() * attention.scaling  # (B, heads, T, S)
            mask = of_keys.mask()
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            rows = of_queries.gather(scores.softmax(-1))  # (N, heads, S)
            parts.append(F.pad(rows, (0, self._source.longest - of_keys.longest)))
        return torch.cat(parts)


class DecodingAttention:
    """fairseq's own attentions of one step of generation, ``x: (1, B, C)``.

    Args:
        state: cache of keys and values.
        padding: ``(B, 1)``, True = the step's token is padding, or ``None``.
        memory: the encoder's output, ``(S, B, C)``, or ``None``.
        memory_padding: ``(B, S)``, True = padding, or ``None``.
    """

    def __init__(
        self,
        state: dict[str, dict[str, Optional[Tensor]]],
        padding: Optional[Tensor],
        memory: Optional[Tensor],
        memory_padding: Optional[Tensor],
    ) -> None:
        self._state, self._padding = state, padding
        self.memory, self._memory_padding = memory, memory_padding

    def within(self, attention: Any, x: Tensor) -> Tensor:
        """Attend to the tokens so far."""
        y, _ = attention(
            query=x,
            key=x,
            value=x,
            key_padding_mask=self._padding,
            incremental_state=self._state,
            need_weights=False,
        )
        return y

    def across(self, attention: Any, x: Tensor, weights: bool) -> tuple[Tensor, Optional[Tensor]]:
        """Attend to the source sentence.

        Returns:
            ``(1, B, C)``; and if ``weights``, how the tokens attend, ``(heads, B, 1, S)``.
        """
        return attention(
            query=x,
            key=self.memory,
            value=self.memory,
            key_padding_mask=self._memory_padding,
            incremental_state=self._state,
            static_kv=True,
            need_weights=weights,
            need_head_weights=weights,
        )


#: The attentions of a decoder layer: of a batch, or of a step of generation.
Attention = PackedAttention | DecodingAttention
