"""Batches of sentences: how they are composed, drawn, mixed anew for every epoch, and collated."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
from fairseq import utils
from torch import nn

__all__ = [
    "AS_TRAINED", "RANDOM", "bucketed_batches", "collate", "compose", "draw_batches", "is_mixed",
    "joint", "mix", "mix_lengths", "padding", "parse_batching", "parse_mixing", "random_batches",
]  # fmt: skip

AS_TRAINED, RANDOM = "as-trained", "random"


def parse_batching(text: str) -> tuple[str, int]:
    """Read a value of ``--tid-batching``.

    Returns:
        Its name, and the number of ``mixed:K`` or ``joint:W`` (else 1).

    Raises:
        ValueError: for another value than ``as-trained``, ``mixed:K``, ``joint:W``, ``random``.
    """
    if text in (AS_TRAINED, RANDOM):
        return text, 1
    match = re.fullmatch("(mixed|joint):([0-9]+)", text)
    if match is None or int(match[2]) < 2:
        raise ValueError(
            "--tid-batching must be `as-trained`, `mixed:K` or `joint:W` with an integer >= 2, or "
            f"`random`, but is `{text}`."
        )
    return match[1], int(match[2])


def compose(
    batches: Sequence[Sequence[int]],
    batching: str,
    seed: int,
    lengths: Optional[npt.ArrayLike],
    neighbours: bool = False,
) -> list[list[int]]:
    """Compose batches of the same sentences, each of which occurs once (``joint:W``: at most).

    fairseq's batches hold sentences of like length, so that they differ from each other in more
    than the accidents of sampling. The compositions take this away by degrees, at about the same
    number of tokens a batch, on which batch statistics depend as well:

    - ``as-trained``: the batches as given.
    - ``mixed:K``: every batch is drawn from K length buckets, see :func:`mix_lengths`.
    - ``joint:W``: W batches in random order are one, as the statistics of W processes that share
      them (``--norm-sync``) see them: so there are fewer, with as many times the tokens. With
      ``neighbours`` the W stand side by side, as ``--grouped-shuffling`` deals them. What makes no
      W is left out, as in training.
    - ``random``: sentences in random order, cut where the numbers of tokens are closest to those
      of the batches as they are, in random order.

    Args:
        batches: indices of sentences; those to mix or to draw from anew are fairseq's own.
        batching: one of the names above.
        seed: of the composition.
        lengths: number of tokens of each sentence, by index; read for ``random`` only.
        neighbours: of ``joint:W``.

    Raises:
        ValueError: for another name, or fewer batches than K or W.
    """
    name, number = parse_batching(batching)
    if number > len(batches):
        raise ValueError(f"--tid-batching {batching}: there are only {len(batches)} batches.")
    # With a stream of its own: the seed alone also draws the sample of batches.
    rng = np.random.default_rng([seed, 1])
    if name == "mixed":
        return [array.tolist() for array in mix_lengths(batches, number, rng)]
    if name == "joint":
        groups = joint(len(batches), number, None if neighbours else rng)
        return [[int(index) for place in group for index in batches[place]] for group in groups]
    arrays = [np.asarray(batch, dtype=np.int64) for batch in batches]
    if name == RANDOM:
        tokens = np.asarray(lengths)
        sentences = rng.permutation(np.concatenate(arrays))
        sizes = rng.permutation([tokens[batch].sum() for batch in arrays])
        arrays = _cut(sentences, tokens, sizes.cumsum()[:-1])
    return [array.tolist() for array in arrays]


_Indices = npt.NDArray[np.int64]


def mix_lengths(
    batches: Sequence[Sequence[int]], buckets: int, rng: np.random.Generator
) -> list[_Indices]:
    """Compose as many batches of the same sentences, each drawn from K random ones.

    The batches, in random order, are dealt into groups of K; each is split into K random parts of
    as many sentences, and new batch j is the union of the j-th parts. Where batches are length
    buckets, a new one holds sentences of K lengths and about as many real tokens as they do on
    average. Where K does not divide their number, groups are as near to K as can be, rather
    larger than smaller; fewer batches than K (``buckets``) make one group. There is at least one.
    """
    mixed = []
    for places in _groups(len(batches), buckets, rng):
        group = [rng.permutation(np.asarray(batches[place], np.int64)) for place in places]
        # Dealt in turn, and the next batch is begun where the last one ended: no new batch gets
        # more than one sentence more than another.
        dealt = np.concatenate(group)
        mixed += [dealt[first :: len(group)] for first in range(len(group))]
    return mixed


def joint(batches: int, processes: int, rng: Optional[np.random.Generator]) -> _Indices:
    """Return the numbers of the batches that processes take together, (joint batches, processes).

    In random order, or neighbours where ``rng`` is ``None``. What is left makes no joint batch.
    """
    order = np.arange(batches) if rng is None else rng.permutation(batches)
    return order[: batches // processes * processes].reshape(-1, processes)


def _groups(total: int, size: int, rng: np.random.Generator) -> list[_Indices]:
    """Split ``range(total)`` at random into groups of nearly ``size``."""
    order = rng.permutation(total)
    number = max(1, total // size)
    groupings = [np.array_split(order, parts) for parts in (number, number + 1)]
    return min(groupings, key=lambda groups: max(abs(len(group) - size) for group in groups))


def random_batches(
    batches: Sequence[Sequence[int]], lengths: npt.NDArray[np.int64], rng: np.random.Generator
) -> list[_Indices]:
    """Compose as many batches of the same sentences, in random order, of equal numbers of tokens.

    A batch's number of tokens differs from the mean over batches by no more than the longest
    sentence has, unless batches have about one sentence each: none is empty.

    Args:
        batches: indices of sentences; at least one batch, and one sentence in each.
        lengths: number of tokens of each sentence, by index.
        rng: what decides.
    """
    sentences = rng.permutation(np.concatenate(batches))
    tokens = lengths[sentences].sum()
    return _cut(sentences, lengths, tokens * np.arange(1, len(batches)) / len(batches))


def padding(batches: Sequence[Sequence[int]], lengths: npt.NDArray[np.int64]) -> float:
    """Return the fraction of padding in batches that are as wide as their longest sentence."""
    parts = [lengths[np.asarray(batch)] for batch in batches]
    tokens = sum(int(part.sum()) for part in parts)
    positions = sum(len(part) * int(part.max()) for part in parts)
    return 1 - tokens / positions


def _cut(
    sentences: _Indices, lengths: npt.NDArray[np.int64], wanted: npt.NDArray[Any]
) -> list[_Indices]:
    """Cut sentences into batches where the tokens before them are closest to ``wanted`` numbers."""
    ends = lengths[sentences].cumsum()  # tokens up to and with each sentence
    middles = ends - lengths[sentences] / 2  # a sentence goes where its larger half does
    cuts = np.searchsorted(middles, wanted)
    # At least one sentence a batch.
    number = np.arange(1, len(wanted) + 1)
    cuts = np.maximum.accumulate(np.maximum(cuts - number, 0)) + number
    cuts = np.minimum(cuts, len(sentences) - number[::-1])
    return np.split(sentences, cuts)


@dataclass
class _Mixer:
    """Composes the batches of an epoch; fairseq's iterator takes it in place of batches."""

    bucketed: Sequence[Any]
    buckets: Optional[int]
    tokens: npt.NDArray[np.int64]
    seed: int

    def __call__(self, dataset: Any, epoch: int) -> list[Any]:
        rng = np.random.default_rng([self.seed, epoch, 2])
        if self.buckets is None:
            return random_batches(self.bucketed, self.tokens, rng)
        return mix_lengths(self.bucketed, self.buckets, rng)


def parse_mixing(value: object) -> Optional[int]:
    """Parse ``--length-mixing``, which is an integer in YAML and older checkpoints.

    Returns:
        The number of length buckets; ``None`` for ``random``, which has no buckets.

    Raises:
        ValueError: for another value than a positive integer or ``random``.
    """
    text = str(value)
    if text == RANDOM:
        return None
    if not re.fullmatch("[1-9][0-9]*", text):
        raise ValueError(
            "--length-mixing must be a positive integer (1 = fairseq's batches) or `random`, but "
            f"is `{text}`."
        )
    return int(text)


def mix(iterator: Any, buckets: Optional[int], tokens: npt.NDArray[np.int64]) -> None:
    """Make fairseq's iterator mix its batches, anew for every epoch, by its seed and the epoch.

    Args:
        iterator: fairseq's EpochBatchIterator.
        buckets: K of :func:`mix_lengths`; ``None``: the batches are those of
            :func:`random_batches`.
        tokens: number of real tokens of each sentence, by index; read for ``None`` only.
    """
    iterator.batch_sampler = _Mixer(bucketed_batches(iterator), buckets, tokens, iterator.seed)
    iterator._frozen_batches = None  # fairseq asks the composer for them


def is_mixed(iterator: Any) -> bool:
    """Tell whether fairseq's iterator mixes its batches."""
    return isinstance(iterator.batch_sampler, _Mixer)


def bucketed_batches(iterator: Any) -> Sequence[Any]:
    """Return fairseq's own batches, of sentences of like length, also where the iterator mixes."""
    sampler = iterator.batch_sampler
    return sampler.bucketed if isinstance(sampler, _Mixer) else iterator.frozen_batches


def draw_batches(batches: Sequence[Any], number: int, seed: int) -> list[Any]:
    """Draw batches (0 = all) uniformly, without replacement, in the order given; by the seed alone.

    fairseq's training batches are sorted by length, so that the first ones would be no sample.
    """
    if number <= 0 or number >= len(batches):
        return list(batches)
    drawn = np.random.default_rng(seed).choice(len(batches), size=number, replace=False)
    return [batches[index] for index in np.sort(drawn)]


def collate(dataset: Any, batches: Iterable[Any], model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the batches as fairseq's samples, on the model's device."""
    device = next(model.parameters()).device
    for batch in batches:
        sample = dataset.collater([dataset[index] for index in batch])
        yield utils.apply_to_sample(lambda t: t.to(device), sample)
