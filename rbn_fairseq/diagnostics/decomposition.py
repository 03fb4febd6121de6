"""Where TID comes from: what is left of it when batches are drawn at random."""

from typing import NamedTuple

from rbn_fairseq.diagnostics.tid import TID

__all__ = ["Sources", "decompose", "squared_share"]


class Sources(NamedTuple):
    """Shares of squared TID with the batches of the training, as fractions; they sum to 1.

    Attributes:
        sentence_sampling: what batches of random sentences have as well.
        length_bucketing: what batches of the training have more, since sentences share them by
            length; negative where random batches have more.
    """

    sentence_sampling: TID
    length_bucketing: TID


def squared_share(part: TID, whole: TID) -> TID:
    """Return ``part^2 / whole^2``; NaN where the whole is 0."""
    ratios = (p / w if w else float("nan") for p, w in zip(part, whole, strict=True))
    return TID(*(ratio**2 for ratio in ratios))


def decompose(as_trained: TID, random: TID) -> Sources:
    """Split squared TID: ``as_trained^2 = random^2 + (as_trained^2 - random^2)``.

    Squares, because variances of independent influences on a batch's statistics add up; TID is
    the mean, not the root mean square, of a length, so that they do so about.
    """
    sampling = squared_share(random, as_trained)
    return Sources(sampling, TID(1 - sampling.mean, 1 - sampling.var))
