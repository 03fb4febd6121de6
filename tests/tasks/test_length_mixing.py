"""Training batches of several length buckets: which sentences, when, on which process."""

import functools

import numpy as np
import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import runs
from rbn_fairseq.tasks.length_mixing import bucketed_batches


@functools.cache
def configuration(*arguments):
    parser = options.get_training_parser()
    given = options.parse_args_and_arch(parser, runs.train_arguments(*arguments))
    return convert_namespace_to_omegaconf(given).task


def iterator(data, *arguments, split="train", max_tokens=1000, seed=7, **how):
    """fairseq's iterator over the batches, made as its trainer makes it."""
    task = tasks.setup_task(configuration(data, "unused", "--no-tid", *arguments))
    task.load_dataset(split)
    return task.get_batch_iterator(
        task.dataset(split), max_tokens=max_tokens, max_positions=(1024, 1024),
        required_batch_size_multiple=8, seed=seed, **how,
    )  # fmt: skip


def sentences(batches):
    return [sorted(map(int, batch)) for batch in batches]


def seen(epoch_iterator, number=None):
    """The sentences of the epoch's next batches, in the order of training."""
    epoch = epoch_iterator.next_epoch_itr()
    samples = [next(epoch) for _ in range(number or len(epoch) - epoch.n)]
    return [sorted(sample["id"].tolist()) for sample in samples if sample]  # none: a dummy batch


@pytest.fixture
def make(data_bin):
    return lambda *arguments, **how: iterator(data_bin, *arguments, **how)


def test_one_bucket_leaves_the_batches_of_fairseq(make):
    plain, mixed = make("--length-mixing", 1), make("--length-mixing", 2)
    assert sentences(plain.frozen_batches) == sentences(make().frozen_batches)
    longest = [max(plain.dataset.src_sizes[list(batch)]) for batch in plain.frozen_batches]
    assert longest == sorted(longest)
    assert sentences(mixed.frozen_batches) != sentences(plain.frozen_batches)


@pytest.mark.parametrize("buckets", [2, 5])
def test_every_sentence_once_an_epoch_from_as_many_buckets(make, buckets):
    bucketed, mixed = make(), make("--length-mixing", buckets)
    home = {i: place for place, batch in enumerate(bucketed.frozen_batches) for i in batch}
    everything = sorted(home)
    for _ in range(2):
        trained = seen(mixed)
        assert len(trained) == len(bucketed.frozen_batches)
        assert sorted(sum(trained, [])) == everything
        homes = [len({home[index] for index in batch}) for batch in trained]
        assert set(homes) <= {buckets, buckets + 1}  # 20 batches, or one or two more


def test_real_tokens_of_a_batch_stay_about_as_many(make):
    bucketed, mixed = make(), make("--length-mixing", 4)
    sizes = bucketed.dataset.src_sizes + bucketed.dataset.tgt_sizes
    before, after = (
        np.array([sizes[list(batch)].sum() for batch in it.frozen_batches])
        for it in (bucketed, mixed)
    )
    assert before.sum() == after.sum() and len(before) == len(after)
    assert after.max() <= 1.05 * before.max()


def test_seed_and_epoch_decide(make):
    first, second = (make("--length-mixing", 3) for _ in range(2))
    epochs = [seen(first), seen(first)]
    assert sorted(epochs[0]) != sorted(epochs[1])  # not in another order alone
    assert [seen(second), seen(second)] == epochs


def test_the_seed_decides_which_buckets_are_mixed(make):
    def mixed(seed):
        it = make("--length-mixing", 3, seed=seed)
        home = {i: place for place, batch in enumerate(bucketed_batches(it)) for i in batch}
        return [sorted({home[index] for index in batch}) for batch in it.frozen_batches]

    assert mixed(7) == mixed(7) != mixed(8)


def test_validation_stays_as_fairseq_has_it(make):
    plain, mixing = (
        make("--length-mixing", buckets, split="valid", max_tokens=150) for buckets in (1, 3)
    )
    assert len(plain.frozen_batches) > 3
    assert sentences(mixing.frozen_batches) == sentences(plain.frozen_batches)


def test_bucketed_batches_are_those_of_fairseq(make):
    plain, mixed = make(), make("--length-mixing", 3)
    for one in (plain, mixed):
        assert sentences(bucketed_batches(one)) == sentences(plain.frozen_batches)


def test_a_line_tells_the_padding(make, caplog):
    caplog.set_level("INFO")
    mixed = make("--length-mixing", 4)
    (line,) = (r.getMessage() for r in caplog.records if "length mixing" in r.getMessage())
    for side in ("src", "tgt"):
        sizes = getattr(mixed.dataset, f"{side}_sizes")
        samples = [[sizes[index] for index in batch] for batch in mixed.frozen_batches]
        areas = [len(batch) * max(batch) for batch in samples]
        share = 1 - sum(map(sum, samples)) / sum(areas)
        assert share > 0.3
        assert f" {100 * share:.1f} % padding" in line
        assert f"largest batch {max(areas)} tokens" in line
    assert "4 buckets" in line
    assert "largest batch 1000 tokens" not in line and "(unmixed 1000)" in line


@pytest.mark.parametrize("stop", [(2, 4), (2, 0)])  # within epoch 2, and before it
def test_resumed_batches_are_those_of_a_training_without_a_stop(make, stop):
    epoch, done = stop
    whole = make("--length-mixing", 3)
    seen(whole)
    rest = seen(whole)[done:]
    stopped = make("--length-mixing", 3)
    seen(stopped)
    if done:
        seen(stopped, done)
    state = stopped.state_dict()
    assert (state["epoch"], state["iterations_in_epoch"]) == stop
    resumed = make("--length-mixing", 3, epoch=state["epoch"])
    resumed.load_state_dict(state)
    assert seen(resumed) == rest


def test_processes_share_an_epoch_out(make):
    whole = make("--length-mixing", 3)
    shards = [make("--length-mixing", 3, num_shards=2, shard_id=rank) for rank in range(2)]
    for _ in range(2):
        parts = [batch for shard in shards for batch in seen(shard)]
        assert sorted(parts) == sorted(seen(whole))


def test_more_buckets_than_batches_are_all_of_them(make, caplog):
    mixed = make("--length-mixing", 10_000)
    number = len(bucketed_batches(mixed))
    (warning,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert f"--length-mixing 10000: there are only {number} batches" in warning
    home = {i: place for place, batch in enumerate(bucketed_batches(mixed)) for i in batch}
    assert all(len({home[i] for i in batch}) == number for batch in mixed.frozen_batches)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--length-mixing", 0), "--length-mixing must be at least 1, but is 0"),
        (("--length-mixing", 2, "--curriculum", 1), "--curriculum 1 .*--length-mixing 2"),
    ],
)
def test_what_cannot_be_is_refused_at_set_up(data_bin, arguments, message):
    with pytest.raises(ValueError, match=message):
        tasks.setup_task(configuration(data_bin, "unused", *arguments))


def test_curriculum_goes_with_the_batches_of_fairseq(make):
    assert len(make("--curriculum", 1)) > 1
