"""Spearman's and Pearson's correlation with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Optional

import numpy as np

__all__ = ["Correlation", "pearson", "spearman"]

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Correlation:
    """A coefficient over ``number`` pairs, ``left_out`` others being not finite.

    ``value`` is ``None`` where it is not defined (one number, or all equal), ``interval`` where it
    has none (fewer than 4 pairs, or a coefficient of 1 or -1).
    """

    value: Optional[float]
    interval: Optional[tuple[float, float]]
    number: int
    left_out: int = 0


def _coefficient(x: Any, y: Any) -> Optional[float]:
    if len(x) < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / norm)) if norm > 0 else None


def _interval(value: Optional[float], variance: float) -> Optional[tuple[float, float]]:
    """Fisher's: normal after z = artanh(r), with this variance."""
    if value is None or abs(value) > 1 - 1e-12:
        return None
    half = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * math.sqrt(variance)
    return math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half)


def _finite(x: Sequence[float], y: Sequence[float]) -> tuple[Any, Any, int]:
    """Return the pairs that are finite as two arrays, and the number of others."""
    pairs = np.asarray([x, y], dtype=float)
    kept = np.isfinite(pairs).all(axis=0)
    return *pairs[:, kept], int((~kept).sum())


def _ranks(values: Any) -> Any:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def pearson(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Return Pearson's r; interval by Fisher's z with standard error 1 / sqrt(n - 3)."""
    one, other, left_out = _finite(x, y)
    value, number = _coefficient(one, other), len(one)
    interval = _interval(value, 1 / (number - 3)) if number > 3 else None
    return Correlation(value, interval, number, left_out)


def spearman(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Return Spearman's rank correlation; ties have mean ranks.

    Interval by Fisher's z with standard error sqrt((1 + r^2 / 2) / (n - 3)). Source: Bonett and
    Wright, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations"
    (Psychometrika, 2000).
    """
    one, other, left_out = _finite(x, y)
    value, number = _coefficient(_ranks(one), _ranks(other)), len(one)
    if value is None or number < 4:
        return Correlation(value, None, number, left_out)
    interval = _interval(value, (1 + value**2 / 2) / (number - 3))
    return Correlation(value, interval, number, left_out)
