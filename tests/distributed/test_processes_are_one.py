"""fairseq-train on several processes against one process: weights and running statistics."""

from unittest import mock

import pytest
import torch
from fairseq.data import iterators

import runs
from processes import launch
from rbn_fairseq.checkpoints.files import read_checkpoint
from saved import load, training_batches
from watching import watching

# With this eps Adam's steps are linear in the gradient; gradients that are zero but for rounding
# would otherwise become whole steps.
LINEAR = (
    "--adam-eps", 1, "--lr", 2, "--warmup-updates", 1, "--dropout", 0, "--max-tokens", 2000,
    "--no-tid", "--conditioning-interval", 0,
)  # fmt: skip
SITES = "batch@embedding:batch@qk:batch"  # heads are rows of their own there
NO_PENALTY = ("--rbn-mean-weight", 0, "--rbn-std-weight", 0)


def options_for(reduction, plan):
    weight = {"sum": 5.0, "token": 0.05}[reduction]  # alike: micro-batches of 100s of tokens
    return (
        "--rbn-mean-weight", weight, "--rbn-std-weight", weight, "--rbn-reduction", reduction,
        "--norm-encoder", plan,
    )  # fmt: skip


class Joined(iterators.CountingIterator):
    """In the place of fairseq's ShardedIterator: all processes' batches in one process."""

    world = 1

    def __init__(self, iterable, num_shards, shard_id, fill_value=None):
        batches = list(iterable)
        joint = [
            [index for batch in batches[start : start + self.world] for index in batch]
            for start in range(0, len(batches), self.world)
        ]
        super().__init__(iter(joint), total=len(joint))


def model_of(directory):
    return read_checkpoint(directory / "checkpoint_last.pt")["model"]


def assert_same(one, other, first, rtol):
    """Two models are the same but for rounding; both have moved from the first one."""
    assert one.keys() == other.keys()
    for name in one:
        moved = (one[name] - first[name]).norm()
        assert (one[name] - other[name]).norm() <= rtol * moved + 1e-6, name
    assert any("running_var" in name for name in one)


@pytest.mark.parametrize(
    "world, reduction, plan",
    [
        (2, "token", "batch"),
        (2, "token", SITES),
        pytest.param(4, "sum", "batch", marks=pytest.mark.nightly),
    ],
)
def test_synchronised_processes_are_one_on_joined_batches(
    forked, data_bin, tmp_path, world, reduction, plan
):
    """Also in the epoch's last update, in which some processes run dummy batches."""
    options = (*LINEAR, *options_for(reduction, plan), "--max-epoch", 1)
    still = (*options, "--lr", runs.NOTHING, "--max-update", 1)
    runs.train(data_bin, tmp_path / "first", *still)
    first = model_of(tmp_path / "first")
    log = launch(forked, data_bin, tmp_path / "many", *options, "--norm-sync", world=world)
    assert f"joint batch (processes: {world})" in log
    with (
        mock.patch.object(iterators, "ShardedIterator", Joined),
        mock.patch.object(Joined, "world", world),
    ):
        runs.train(data_bin, tmp_path / "one", *options)
    assert_same(model_of(tmp_path / "one"), model_of(tmp_path / "many"), first, 1e-3)


def test_processes_by_themselves_agree_on_the_mean(forked, data_bin, tmp_path):
    """Without a penalty their weights are those of --update-freq; statistics are averaged."""
    options = (*LINEAR, "--norm-encoder", "batch", *NO_PENALTY)
    launch(forked, data_bin, tmp_path / "many", *options, "--max-update", 3)
    with watching() as seen:
        runs.train(data_bin, tmp_path / "one", *options, "--update-freq", 2, "--max-update", 3)
    one, many = model_of(tmp_path / "one"), model_of(tmp_path / "many")
    expected = seen.statistics(averaged=True)
    assert len(expected) == 4
    for name, value in one.items():
        if "running" not in name:
            torch.testing.assert_close(many[name], value, rtol=1e-4, atol=1e-6)
    for name, (mean, var) in expected.items():
        for kind, value in (("mean", mean), ("var", var)):
            saved = many[f"{name}.population.running_{kind}"].double()
            torch.testing.assert_close(saved, value, rtol=1e-4, atol=1e-5)


def test_processes_that_run_out_of_data_within_an_update(forked, data_bin, tmp_path):
    """Two processes with two batches an update are one with four, in the last update, too."""
    options = (*LINEAR, "--max-tokens", 1000, "--norm-encoder", "layer", *NO_PENALTY)
    options = (*options, "--clip-norm", 0, "--max-epoch", 1)
    runs.train(data_bin, tmp_path / "one", *options, "--update-freq", 4)
    launch(forked, data_bin, tmp_path / "many", *options, "--update-freq", 2)
    _, cfg, task = load(tmp_path / "one" / "checkpoint_last.pt", data_bin)
    # So the second process has a batch for half of the last update.
    assert len(training_batches(cfg, task)[1]) % 4 == 3
    one, many = model_of(tmp_path / "one"), model_of(tmp_path / "many")
    for name, value in one.items():
        torch.testing.assert_close(many[name], value, rtol=1e-4, atol=1e-6)
