"""Means over seeds, and differences to layer norm."""

import json
import statistics
from collections import defaultdict
from dataclasses import replace

import pandas as pd
import pytest

from rbn_fairseq.report.means import at_last_epoch, gaps_by_epoch, last_gaps
from rbn_fairseq.report.runs import read_run
from rbn_fairseq.report.tables import summary


def test_means_at_the_last_epoch_of_all_seeds(make, group):
    last = (4.0, 4.5, 7.0)
    runs = [make("a", nll=(5.0, last[0], 3.0)), make("b", seed=2, nll=(6.0, last[1]))]
    one = group([*runs, make("c", seed=3, nll=(6.0, last[2]))])
    mean = at_last_epoch(one, one.frames["valid"], "nll_loss").loc[0]
    assert mean["mean"] == pytest.approx(statistics.fmean(last))
    assert mean["std"] == pytest.approx(statistics.stdev(last))
    assert mean["count"] == 3


def test_validations_within_an_epoch_are_not_compared(make, group):
    """Of two trainings that run, which have come to different updates."""
    runs = [make("ln", nll=(5.0, 4.0)), make("bn", "BN", nll=(5.5, 4.0))]
    within = {"epoch": 2, "update": 150, "nll_loss": 4.5, "ended": False}
    before = [run.valid[run.valid["epoch"] == 1] for run in runs]
    runs = [replace(run, valid=pd.concat([valid, pd.DataFrame([within | {"update": update}])]))
            for run, valid, update in zip(runs, before, (150, 120), strict=True)]  # fmt: skip
    one = group(runs)
    assert list(gaps_by_epoch(one)["epoch"]) == [1] and list(gaps_by_epoch(one)["gap"]) == [0.5]
    means = at_last_epoch(one, one.frames["valid"], "nll_loss")
    assert list(means["epoch"]) == [1, 1] and list(means["mean"]) == [5.0, 5.5]
    (table,) = summary(one, defaultdict(str))
    last = table.numbers.set_index("run")["last valid nll"]
    assert last.to_dict() == {"ln": 5.0, "bn": 5.5}


def test_gaps_are_to_the_same_seed(make, group):
    runs = [
        make(f"ln{seed}", seed=seed, nll=(5.0, 4.0 + seed), bleu=30.0 + seed) for seed in (1, 2)
    ]
    runs += [make(f"bn{seed}", "BN", seed=seed, nll=(5.5, 6.0), bleu=30.0) for seed in (1, 2, 3)]
    one = group(runs)
    gaps = gaps_by_epoch(one).set_index(["run", "epoch"])["gap"]
    assert gaps["bn1", 2] == 1.0 and gaps["bn2", 2] == 0.0
    assert gaps["bn3", 2] == 6.0 - statistics.fmean((5.0, 6.0))  # there is no LN of seed 3
    (last,) = last_gaps(one).to_dict("records")
    assert last["nll"] == pytest.approx(statistics.fmean((1.0, 0.0, 0.5)))
    assert last["score"] == pytest.approx(statistics.fmean((1.0, 2.0, 1.5)))
    assert (last["nll_count"], last["score_count"]) == (3, 3)


@pytest.mark.parametrize("updates, compared", [(50, False), (98, True)])
def test_a_training_that_ended_early_in_the_same_epoch(make, group, updates, compared):
    """By --max-update, say, or by fewer updates that were skipped in half precision."""
    runs = [make("ln", nll=(5.0,), bleu=30.0), make("bn", "BN", nll=(5.5,), bleu=29.0)]
    frames = {name: getattr(runs[0], name).assign(update=updates) for name in ("valid", "train")}
    one = group([replace(runs[0], **frames), runs[1]])
    assert len(gaps_by_epoch(one)) == compared
    assert last_gaps(one)["score"].notna().sum() == compared


def test_scores_that_cannot_be_compared(make, group):
    one = group([make("ln", nll=(5.0,), bleu=30.0), make("bn", "BN", nll=(5.0, 4.0), bleu=29.0)])
    assert last_gaps(one)["score"].isna().all()  # other epochs
    first, second = make("ln2", bleu=30.0), make("bn2", "BN", bleu=29.0)
    path = second.directory / "score.json"
    score = json.loads(path.read_text())["sacrebleu"]
    for other in ({}, {"signature": "nrefs:1|tok:none"}, {"search": "beam 4"}):
        path.write_text(json.dumps({"sacrebleu": score | other}))
        one = group([first, read_run("bn2", second.directory)])
        assert last_gaps(one)["score"].isna().all() == bool(other), other
