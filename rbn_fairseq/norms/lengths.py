"""Bins of sentence lengths."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["LengthBins", "cut_lengths", "neighbours"]


class LengthBins(NamedTuple):
    """Bins of lengths, for sentences of training data.

    Attributes:
        edges: ``(bins + 1,)``, ascending: bin g holds ``edges[g] <= length < edges[g + 1]``, the
            last one its upper edge, too. The outer ones are the shortest and the longest sentence.
        centres: ``(bins,)``, ascending: mean lengths of the tokens' sentences.
    """

    edges: np.ndarray
    centres: np.ndarray


def _share_out(weights: np.ndarray, bins: int) -> np.ndarray:
    """Cut a row of weights into parts of about equal sums, each with at least one.

    Returns:
        ``(bins - 1,)``, where the second and later parts begin.
    """
    begins, begin, left = [], 0, weights.sum()
    for following in range(bins - 1, 0, -1):
        sums = np.cumsum(weights[begin : len(weights) - following])
        taken = int(np.argmin(np.abs(sums - left / (following + 1))))
        begin += taken + 1
        left -= sums[taken]
        begins.append(begin)
    return np.array(begins, dtype=np.int64)


def cut_lengths(lengths: Sequence[int], bins: int) -> LengthBins:
    """Choose bins for sentences of these lengths.

    As many sentences in each, as nearly as lengths that are not cut and bins that are not empty
    let them be.

    Args:
        lengths: of the training sentences, in tokens, as the norms see them.
        bins: their number.

    Raises:
        ValueError: if there are fewer different lengths than bins.
    """
    different, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    if len(different) < bins:
        raise ValueError(
            f"The training sentences have {len(different)} different lengths, which are too few "
            f"for {bins} bins. Ask for at most {len(different)}."
        )
    between = (different[:-1] + different[1:]) / 2
    begins = _share_out(counts.astype(np.float64), bins)
    edges = np.array([different[0], *between[begins - 1], different[-1]], dtype=np.float64)
    tokens = (counts * different).astype(np.float64)
    parts = zip(np.split(tokens, begins), np.split(different, begins), strict=True)
    return LengthBins(edges, np.array([(part @ of) / part.sum() for part, of in parts]))


def neighbours(lengths: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return between which bins' centres lengths lie, and how far from the lower one.

    Args:
        lengths: ``(B,)``.
        centres: ``(bins,)``, ascending.

    Returns:
        The lower and the upper bin, ``(B,)``, and the upper one's share, ``(B, 1)``; twice the
        same bin beyond the outer centres.
    """
    lengths = lengths.to(centres.dtype)
    above = torch.searchsorted(centres, lengths, right=True)
    lower, upper = (above - 1).clamp(min=0), above.clamp(max=len(centres) - 1)
    width = centres[upper] - centres[lower]
    share = torch.where(width > 0, (lengths - centres[lower]) / width, 0)
    return lower, upper, share.unsqueeze(1)
