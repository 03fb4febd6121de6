"""Training batches of several lengths or random ones: which sentences, when, on which process."""

import functools
import re

import numpy as np
import pytest
import torch
from fairseq import tasks
from fairseq.data import LanguagePairDataset

import composing
import runs
from rbn_fairseq.callbacks.length_mixing import LengthMixing
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.measuring.batches import bucketed_batches, mix
from trainings import training


@functools.cache
def configuration(*arguments):
    return composing.options_of(runs.train_arguments(*arguments)).task


def iterator(data, *arguments, split="train", max_tokens=1000, seed=7, multiple=8, **how):
    """fairseq's iterator over the batches, made as its trainer makes it."""
    task = tasks.setup_task(configuration(data, "unused", "--no-tid", *arguments))
    task.load_dataset(split)
    return task.get_batch_iterator(
        task.dataset(split), max_tokens=max_tokens, max_positions=(1024, 1024),
        required_batch_size_multiple=multiple, seed=seed, **{"epoch": 1, **how},
    )  # fmt: skip


def sentences(batches):
    return [sorted(map(int, batch)) for batch in batches]


def tokens_of(iterator):
    """Numbers of real tokens of the batches, source and target together; those of sentences."""
    sizes = iterator.dataset.src_sizes + iterator.dataset.tgt_sizes
    return np.array([sizes[list(batch)].sum() for batch in iterator.frozen_batches]), sizes


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


@pytest.mark.parametrize("how", [{"max_tokens": 1000}, {"max_tokens": None, "max_sentences": 5}])
def test_random_batches_of_every_sentence_and_of_equal_numbers_of_tokens(make, how):
    bucketed, random = make(**how), make("--length-mixing", "random", **how)
    everything = sorted(sum(sentences(bucketed.frozen_batches), []))
    for _ in range(2):
        trained = seen(random)
        assert len(trained) == len(bucketed.frozen_batches) > 10
        assert sorted(sum(trained, [])) == everything
        tokens, sizes = tokens_of(random)
        assert np.abs(tokens - tokens.mean()).max() <= sizes[everything].max()
    sizes = random.dataset.src_sizes
    groups = [
        np.mean([len(set(sizes[list(batch)])) for batch in it.frozen_batches])
        for it in (bucketed, random)
    ]
    assert groups[1] > 2 * groups[0]


def test_tokens_of_both_sides_are_counted(make):
    it = make()
    it.dataset.tgt_sizes = 1 + 50 * (np.arange(len(it.dataset)) % 3)  # whatever the source has
    mix(it, None, EncoderDecoder().tokens(it.dataset))
    tokens, sizes = tokens_of(it)
    assert np.abs(tokens - tokens.mean()).max() <= sizes.max()


@pytest.mark.parametrize("value", [2, "random"])
def test_hardly_any_sentence(make, monkeypatch, value):
    def sentences_of(number, multiple):
        monkeypatch.setattr(LanguagePairDataset, "ordered_indices", lambda self: np.arange(number))
        return sentences(make("--length-mixing", value, multiple=multiple).frozen_batches)

    assert sentences_of(1, 1) == [[0]]
    assert sentences_of(2, 1) == [[0, 1]]
    for number, multiple in ((0, 1), (7, 8)):  # fairseq makes no batch of these
        with pytest.raises(ValueError, match=f"--length-mixing {value} .*-multiple 1"):
            sentences_of(number, multiple)


@pytest.mark.parametrize("value", [3, "random"])
def test_seed_and_epoch_decide(make, value):
    first, second = (make("--length-mixing", value) for _ in range(2))
    epochs = [seen(first), seen(first)]
    assert sorted(epochs[0]) != sorted(epochs[1])  # not in another order alone
    assert [seen(second), seen(second)] == epochs
    assert sorted(seen(make("--length-mixing", value, seed=8))) != sorted(epochs[0])


@pytest.mark.parametrize("value", [3, "random"])
def test_validation_stays_as_fairseq_has_it(make, value):
    plain, mixing = (
        make("--length-mixing", buckets, split="valid", max_tokens=150) for buckets in (1, value)
    )
    assert len(plain.frozen_batches) > 3
    assert sentences(mixing.frozen_batches) == sentences(plain.frozen_batches)


@pytest.mark.parametrize("how, number", [({"epoch": 1}, 16), ({}, 21)])
def test_only_a_training_leaves_sentences_out(data_bin, how, number):
    """Without an epoch, as fairseq-generate and fairseq-validate ask, the training set is whole."""
    task = tasks.setup_task(configuration(data_bin, "unused", "--no-tid"))
    task.load_dataset("train")
    task.dataset("train").ordered_indices = lambda: np.arange(21)
    batches = task.get_batch_iterator(
        task.dataset("train"), max_tokens=1000, required_batch_size_multiple=8, **how
    ).frozen_batches
    assert sum(map(len, batches)) == number


def lines(caplog):
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("length mixing")]


@pytest.mark.parametrize("value, named", [(4, "4 buckets"), ("random", "random")])
def test_a_line_describes_the_batches(make, caplog, value, named):
    caplog.set_level("INFO")
    make()  # the batches of fairseq have no line
    mixed = make("--length-mixing", value)
    (line,) = lines(caplog)
    tokens, _ = tokens_of(mixed)
    lengths = mixed.dataset.src_sizes
    groups = np.mean([len({lengths[i] for i in batch}) for batch in mixed.frozen_batches])
    expected = [f"{len(tokens)}", f"{tokens.mean():.0f}", f"{tokens.max()}", f"{groups:.1f}"]
    for side in ("src", "tgt"):
        sizes = getattr(mixed.dataset, f"{side}_sizes")
        samples = [[sizes[index] for index in batch] for batch in mixed.frozen_batches]
        areas = [len(batch) * max(batch) for batch in samples]
        share = 1 - sum(map(sum, samples)) / sum(areas)
        assert share > 0.3
        expected.append(f"{100 * share:.1f}")
    assert named in line
    assert re.findall(r"\d[\d.]*", line.partition("|")[2]) == expected


@pytest.mark.parametrize("stop", [(2, 4), (2, 0)])  # within epoch 2, and before it
@pytest.mark.parametrize("value", [3, "random"])
def test_resumed_batches_are_those_of_a_training_without_a_stop(make, stop, value):
    epoch, done = stop
    whole = make("--length-mixing", value)
    seen(whole)
    rest = seen(whole)[done:]
    stopped = make("--length-mixing", value)
    seen(stopped)
    if done:
        seen(stopped, done)
    state = stopped.state_dict()
    assert (state["epoch"], state["iterations_in_epoch"]) == stop
    resumed = make("--length-mixing", value, epoch=state["epoch"])
    resumed.load_state_dict(state)
    assert seen(resumed) == rest


@pytest.mark.parametrize("value", [3, "random"])
def test_processes_share_an_epoch_out(make, value):
    whole = make("--length-mixing", value)
    shards = [make("--length-mixing", value, num_shards=2, shard_id=rank) for rank in range(2)]
    for _ in range(2):
        parts = [batch for shard in shards for batch in seen(shard)]
        assert sorted(parts) == sorted(seen(whole))


def test_more_buckets_than_batches_are_all_of_them(make, caplog):
    caplog.set_level("INFO")
    mixed = make("--length-mixing", 10_000)
    number = len(bucketed_batches(mixed))
    (line,) = lines(caplog)
    assert f"{number} buckets" in line
    home = {i: place for place, batch in enumerate(bucketed_batches(mixed)) for i in batch}
    assert all(len({home[i] for i in batch}) == number for batch in mixed.frozen_batches)


@pytest.mark.parametrize(
    "value, curriculum, message",
    [
        *(
            (value, 0, f"--length-mixing must be .*but is `{re.escape(value)}`")
            for value in ("0", "-1", "2.5", "Random", "", " 2", "02", "²")
        ),
        ("2", 1, "--curriculum 1 .*--length-mixing 2"),
        ("random", 1, "--curriculum 1 .*--length-mixing r"),
    ],
)
def test_malformed_values_and_a_curriculum_are_refused(value, curriculum, message):
    around = training({"length_mixing": value}, dataset={"curriculum": curriculum})
    with pytest.raises(ValueError, match=message):
        LengthMixing(around).check(None)


def test_a_checkpoint_with_a_number_is_read_by_every_command(data_bin, rbn_run, tmp_path):
    """As older versions saved it."""
    path = tmp_path / "checkpoint_last.pt"
    state = read_checkpoint(rbn_run / path.name)
    state["cfg"]["task"]["length_mixing"] = 3
    torch.save(state, path)
    assert runs.generate(data_bin, path) == runs.generate(data_bin, rbn_run / path.name)
    runs.evaluate("validate", data_bin, path, "--max-tokens", 1000)
    runs.train(data_bin, tmp_path, *runs.RBN, "--length-mixing", 3, "--max-epoch", 4)
    resumed = read_checkpoint(path)
    assert resumed["extra_state"]["train_iterator"]["epoch"] == 5
    assert resumed["cfg"]["task"]["length_mixing"] == "3"
