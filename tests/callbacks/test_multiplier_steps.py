"""A target TID in trainings: multipliers follow the updates that are made, and checkpoints."""

import json
import math
import re
from contextlib import ExitStack

import pytest
import torch

import runs
from rbn_fairseq.callbacks.multiplier_steps import MultiplierSteps
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.criterions import RBNPenalty
from rbn_fairseq.criterions.multipliers import Multipliers
from rbn_fairseq.criterions.penalty import relative_gaps
from rbn_fairseq.norms import BatchNorm, record_gaps
from trainings import task
from watching import amp_on_cpu, overflowing, watching

SMALL = (
    "--norm-encoder", "batch", "--conditioning-interval", 0, "--encoder-embed-dim", 16,
    "--encoder-ffn-embed-dim", 16, "--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16,
    "--decoder-layers", 1, "--max-tokens", 200, "--train-subset", "valid", "--valid-subset", "test",
)  # fmt: skip
TARGET = (
    "--rbn-target-tid", "2,3", "--rbn-target-step", 0.01, "--rbn-target-cap", 0.05,
    "--norm-batch-momentum", 0.7,
)  # fmt: skip
STEP, CAP, SMOOTHING, EPS = 0.01, 0.05, 0.05, 1e-5
MOMENTUM, START = 0.7, 8  # updates until running statistics have left their start


def saved(directory):
    state = read_checkpoint(directory / "checkpoint_last.pt")
    return state["extra_state"]["TranslationRBNTask"]["callbacks"]["MultiplierSteps"]


def fold(seen):
    """Multipliers and smoothed squares from the batch moments of the updates that were made."""
    population, held = {}, {}
    made = [batches for batches, made in zip(seen.attempts, seen.made, strict=True) if made]
    for number, batches in enumerate(made):
        gaps = {}
        for moments in batches:
            for name, (mean, var) in moments.items():
                old = population.get(name, (torch.zeros_like(mean), torch.ones_like(var)))
                std = (var + EPS).sqrt()
                gap = (
                    (mean - old[0]).norm() / std.norm(),
                    (std - (old[1] + EPS).sqrt()).norm() / std.norm(),
                )
                gaps.setdefault(name, []).append(gap)
                population[name] = tuple(
                    (1 - MOMENTUM) * was + MOMENTUM * new
                    for was, new in zip(old, (mean, var), strict=True)
                )
        for name, own in gaps.items() if number >= START else ():
            means = [sum(gap[kind] ** 2 for gap in own) / len(own) for kind in (0, 1)]
            values, smoothed = held.get(name, ((0.0, 0.0), means))
            smoothed = [
                (1 - SMOOTHING) * s + SMOOTHING * h for s, h in zip(smoothed, means, strict=True)
            ]
            values = [
                min(max(value + STEP * min(s / t**2 - 1, 1), 0), CAP)
                for value, s, t in zip(values, smoothed, (0.02, 0.03), strict=True)
            ]
            held[name] = (values, smoothed)
    return {name: [*map(float, values), *map(float, s)] for name, (values, s) in held.items()}


@pytest.mark.parametrize("kind", ["all made", "overflow, retries of --amp"])
def test_multipliers_follow_the_updates_that_are_made(data_bin, tmp_path, kind):
    with ExitStack() as stack:
        seen = stack.enter_context(watching())
        options = ()
        if kind != "all made":
            stack.enter_context(amp_on_cpu())
            stack.enter_context(overflowing({12, 13, 15, 16, 17}))
            options = ("--amp", "--amp-batch-retries", 1)
        runs.train(
            data_bin, tmp_path, *SMALL, *TARGET, *options, "--update-freq", 2, "--max-update", 14,
            "--no-tid",
        )  # fmt: skip
    assert sum(seen.made) == 14 and all(seen.made) == (kind == "all made")
    expected, found = fold(seen), saved(tmp_path)
    assert len(expected) == 4 and found.keys() == expected.keys()
    for name, row in found.items():
        assert row == pytest.approx(expected[name], rel=1e-4)  # fp32
    assert any(row[0] > 0 for row in found.values())


@pytest.fixture(scope="module")
def whole(data_bin, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    log = runs.train(
        data_bin, directory, *SMALL, *TARGET, "--rbn-warmup-updates", 13, "--max-epoch", 3,
        "--tensorboard-logdir", directory / "board",
    )  # fmt: skip
    return directory, log


def lines(directory):
    return [json.loads(line) for line in (directory / "multipliers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stop", [("--max-update", 12), ("--max-epoch", 2)])
def test_resume(data_bin, tmp_path, whole, stop):
    options = (*SMALL, *TARGET, "--rbn-warmup-updates", 13)
    runs.train(data_bin, tmp_path, *options, *stop)
    assert max(row[0] for row in saved(tmp_path).values()) > 0
    runs.train(data_bin, tmp_path, *options, "--max-epoch", 3)
    one, other = (
        read_checkpoint(path / "checkpoint_last.pt")["model"] for path in (tmp_path, whole[0])
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert saved(tmp_path) == saved(whole[0])
    assert lines(tmp_path) == lines(whole[0])


def test_what_is_told(whole):
    directory, log = whole
    assert "TID of mean and std at most 2 % and 3 % in every batch norm" in log
    assert "with step 0.01 and cap 0.05, growing from 0 in the first 13 updates" in log
    penalties = re.findall(r"train \| epoch 00\d .*rbn_penalty ([\d.e-]+)", log)
    assert len(penalties) == 3 and float(penalties[-1]) > 0  # the warm-up is over
    records = lines(directory)
    layers = [row["layer"] for row in runs.tid_rows(directory) if row["epoch"] == 1]
    assert [(row["epoch"], row["layer"]) for row in records] == [
        (epoch, layer) for epoch in (1, 2, 3) for layer in layers
    ]
    last = {row["layer"]: [*row.values()][3:] for row in records if row["epoch"] == 3}
    # The training ended there.
    held = saved(directory).items()
    assert last == {name: [*row[:2], *map(math.sqrt, row[2:])] for name, row in held}
    largest = max(row[0] for row in last.values())
    assert f"mean: {min(row[0] for row in last.values()):.3g} to {largest:.3g}, std" in log
    assert list((directory / "board" / "norms").glob("*.multipliers.*"))


@pytest.mark.parametrize("kind", ["a checkpoint without", "--reset-dataloader"])
def test_a_training_that_goes_on_without_multipliers_tells_it(data_bin, tmp_path, kind):
    first, second = ((), ()) if kind == "a checkpoint without" else (TARGET, (kind,))
    options = (*SMALL, *TARGET[-2:], "--no-tid", "--max-update")
    log = runs.train(data_bin, tmp_path, *options, START + 2, *first)
    line = "multipliers start at 0, none were read: encoder.layers.0.self_attn"
    assert line not in log
    log = runs.train(data_bin, tmp_path, *options, START + 3, *TARGET, *second)
    assert log.count(line) == 1
    assert 0 < max(max(row[:2]) for row in saved(tmp_path).values()) <= STEP  # one step


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_part_in_an_update_is_not_seen(lost):
    norm = BatchNorm(2)
    training = task(MultiplierSteps).training
    training.criterion = RBNPenalty()
    held = training.criterion.multipliers = Multipliers(torch.nn.ModuleList([norm]), (1, 1), 0.1, 1)
    with record_gaps() as gaps:
        norm(torch.randn(5, 2))
    callback = MultiplierSteps(training)
    callback.on_attempt(norm)
    held.observe(gaps, relative_gaps(gaps))
    callback.on_update(lost)
    assert (held.records()[0]["mean_gap"] is None) == lost


def test_tid_ends_below_its_target(data_bin, tmp_path):
    """Of the worst batch norm, which has several times as much without; and not far below."""
    train = (
        *SMALL, "--lr", 0.02, "--warmup-updates", 10, "--max-epoch", 16, "--validate-interval", 16,
        "--save-interval", 16, "--norm-batch-momentum", 0.5,
    )  # fmt: skip
    worst = []
    for name, options in {
        "plain": (),
        "held": (
            "--rbn-target-tid", "4:6", "--rbn-target-step", 0.01, "--rbn-target-cap", 1,
        ),
    }.items():  # fmt: skip
        runs.train(data_bin, tmp_path / name, *train, *options)
        rows = [row for row in runs.tid_rows(tmp_path / name) if row["epoch"] == 16]
        worst.append([max(row[key] for row in rows) for key in ("mean_tid", "var_tid")])
    plain, held = worst
    assert plain[0] > 0.12 and plain[1] > 0.07
    assert 0.02 < held[0] < 0.04 and 0.02 < held[1] < 0.06
