"""Compositions of batches: partitions of the sentences, of the promised sizes and mixtures."""

import itertools

import numpy as np
import pytest

from rbn_fairseq.measuring.batches import (
    compose,
    mix_lengths,
    padding,
    parse_batching,
    random_batches,
)

EVERY = ["as-trained", "random", "mixed:2", "mixed:3", "mixed:16", "mixed:300"]


def bucketed(lengths, tokens=60):
    """Sort by length and cut, as fairseq does; no width times number above ``tokens``."""
    batches, batch = [], []
    for index in np.argsort(lengths, kind="stable"):
        if batch and lengths[index] * (len(batch) + 1) > tokens:
            batches.append(batch)
            batch = []
        batch.append(int(index))
    return [*batches, batch]


@pytest.fixture
def lengths():
    rng = np.random.default_rng(3)
    return rng.integers(2, 41, size=1003)


@pytest.fixture
def batches(lengths):
    return bucketed(lengths)


@pytest.mark.parametrize("batching", EVERY)
def test_every_sentence_once_and_as_many_batches(batches, lengths, batching):
    composed = compose(batches, batching, 1, lengths)
    assert sorted(sum(composed, [])) == list(range(1003))
    assert len(composed) == len(batches)
    assert all(composed)
    assert (composed == batches) == (batching == "as-trained")


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("processes", [2, 3, 16])
def test_joint_batches_are_whole_ones_together(batches, lengths, processes, neighbours):
    home = {index: place for place, batch in enumerate(batches) for index in batch}
    composed = compose(batches, f"joint:{processes}", 1, lengths, neighbours)
    parts = [sorted({home[index] for index in batch}) for batch in composed]
    assert sum(map(len, composed)) == sum(len(batches[place]) for part in parts for place in part)
    assert [len(part) for part in parts] == [processes] * (len(batches) // processes)
    assert len({*sum(parts, [])}) == sum(map(len, parts))  # none is in two
    in_turn = [[*range(first, first + processes)] for first in range(0, len(batches), processes)]
    assert (parts == in_turn[: len(parts)]) == neighbours


@pytest.mark.parametrize("batching", [*EVERY[1:], "joint:2"])
def test_the_seed_decides(batches, lengths, batching):
    one = compose(batches, batching, 1, lengths)
    assert one == compose(batches, batching, 1, lengths)
    assert one != compose(batches, batching, 2, lengths)


@pytest.mark.parametrize("buckets", [2, 3, 16])
def test_mixed_takes_equal_parts_of_as_many_batches(batches, lengths, buckets):
    home = {index: place for place, batch in enumerate(batches) for index in batch}
    composed = compose(batches, f"mixed:{buckets}", 1, lengths)
    least, over = divmod(len(batches), len(batches) // buckets)
    ends = np.cumsum([least + 1] * over + [least] * (len(batches) // buckets - over))
    groups = [composed[start:end] for start, end in itertools.pairwise([0, *ends])]
    for group in groups:
        homes = {home[index] for batch in group for index in batch}
        assert len(homes) == len(group)
        sizes = [len(batch) for batch in group]
        assert max(sizes) - min(sizes) <= 1
        for place in homes:
            parts = [sum(home[index] == place for index in batch) for batch in group]
            assert max(parts) - min(parts) <= 1  # 0 or 1 of a batch with fewer than K sentences


@pytest.mark.parametrize(
    ("number", "buckets", "sizes"),
    [
        (6, 3, [3, 3]),
        (7, 3, [4, 3]),
        (9, 5, [5, 4]),
        (15, 4, [5, 5, 5]),
        (8, 5, [4, 4]),
        (7, 5, [7]),
    ],
)
def test_groups_are_as_near_to_the_number_of_buckets_as_can_be(number, buckets, sizes):
    batches = [[place * 100 + n for n in range(50)] for place in range(number)]
    mixed = mix_lengths(batches, buckets, np.random.default_rng(1))
    homes = [frozenset(index // 100 for index in batch) for batch in mixed]
    assert [len(group) for group in dict.fromkeys(homes)] == sizes


def test_padding():
    lengths = np.array([4, 1, 2, 2, 3])
    # 2 of 8 tokens, none of 4, and none of 3.
    assert padding([[0, 2], [2, 3], [4]], lengths) == pytest.approx(2 / 15)


@pytest.mark.parametrize("lengths", [[50, 1, 1, 1], [1, 1, 1, 50], [7, 7, 7, 7]])
@pytest.mark.parametrize("number", [1, 3, 4])
def test_no_batch_of_equal_numbers_of_tokens_is_empty(lengths, number):
    batches = np.array_split(np.arange(4), number)
    for seed in range(20):
        composed = random_batches(batches, np.array(lengths), np.random.default_rng(seed))
        assert len(composed) == number and all(map(len, composed))
        assert sorted(np.concatenate(composed)) == [0, 1, 2, 3]


def test_mixed_draws_both_the_group_and_the_parts_at_random():
    batches = [list(range(start, start + 8)) for start in range(0, 80, 8)]
    lengths = np.ones(80)
    together = np.zeros((80, 80))
    for seed in range(500):
        for batch in compose(batches, "mixed:2", seed, lengths):
            together[np.ix_(batch, batch)] += 1
    own = np.array([[i // 8 == j // 8 and i != j for j in range(80)] for i in range(80)])
    other = np.array([[i // 8 != j // 8 for j in range(80)] for i in range(80)])
    # A batch is four of eight sentences (3 / 7 for two of them), and four of one of nine others.
    for pairs, chance in ((own, 3 / 7), (other, 1 / 9 / 2)):
        error = np.sqrt(500 * chance * (1 - chance))
        assert np.abs(together[pairs] - 500 * chance).max() < 5.5 * error


def test_random_batches_have_the_numbers_of_tokens_of_the_training(lengths):
    batches = bucketed(lengths, 600)
    composed = compose(batches, "random", 1, lengths)
    wanted, found = (np.array([lengths[batch].sum() for batch in b]) for b in (batches, composed))
    # Each end is off by at most half a sentence: the longest has 40 tokens.
    assert np.abs(np.sort(found) - np.sort(wanted)).max() <= 40
    assert abs(np.corrcoef(np.arange(len(found)), found)[0, 1]) < 0.3
    assert len(found) == len(wanted) > 30
    # Of about 30 sentences each of all lengths, not of like ones.
    assert np.mean([np.std(lengths[batch]) for batch in composed]) > 0.9 * np.std(lengths)


def test_sizes_of_random_batches_are_in_random_order():
    batches = np.split(np.arange(820), np.arange(1, 40).cumsum())  # of 1 to 40 sentences
    sizes = [len(batch) for batch in compose(batches, "random", 1, np.ones(820, dtype=int))]
    assert sorted(sizes) == list(range(1, 41)) != sizes


@pytest.mark.parametrize("text", ["", "mixed:", "mixed:1", "mixed:2.5", "Random", "joint"])
def test_unknown_names(text):
    for attempt in (lambda: parse_batching(text), lambda: compose([[0]], text, 1, [1])):
        with pytest.raises(ValueError, match="--tid-batching must be .*mixed:K") as error:
            attempt()
        assert str(error.value).endswith(f"but is `{text}`.")


def test_more_buckets_than_batches_are_refused():
    with pytest.raises(ValueError, match="--tid-batching mixed:4: there are only 3 batches"):
        compose([[0], [1], [2]], "mixed:4", 1, [1, 1, 1])
    assert sorted(sum(compose([[0], [1], [2]], "mixed:3", 1, [1, 1, 1]), [])) == [0, 1, 2]
