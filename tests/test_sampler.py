"""What results/sampler needs beside the package: a control, and statistics by groups of tokens."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator

import runs
from rbn_fairseq.measuring.batches import mix
from rbn_fairseq.measuring.cost import cost_of_checkpoint
from rbn_fairseq.measuring.session import open_session

SAMPLER = Path(__file__).resolve().parent.parent / "results" / "sampler"


def test_batches_that_are_composed_once(monkeypatch):
    monkeypatch.syspath_prepend(SAMPLER)
    from controls import OneComposition

    batches = np.arange(120).reshape(12, 10)
    iterator = EpochBatchIterator(FairseqDataset(), None, batches.tolist(), seed=1)
    mix(iterator, 4, np.ones(120))
    first, second = (iterator.batch_sampler(iterator.dataset, epoch) for epoch in (1, 2))
    assert not np.array_equal(first, second)
    OneComposition(None).on_batches(iterator)
    assert np.array_equal(iterator.frozen_batches, first)
    assert np.array_equal(iterator.batch_sampler(iterator.dataset, 2), first)


def test_statistics_by_groups_of_tokens(varied, tmp_path, monkeypatch, capsys):
    """Where there is one group, or none, they are those of `rbn cost`."""
    runs.train(varied, tmp_path, "--norm-encoder", "batch", "--max-update", 20, "--no-tid")
    arguments = [str(tmp_path), "checkpoint_last.pt", "--batches", "0"]
    monkeypatch.setattr(sys, "argv", ["ablation.py", *arguments])
    runpy.run_path(str(SAMPLER / "ablation.py"), run_name="__main__")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    nll = {row["statistics"]: row["nll"] for row in rows}
    records = cost_of_checkpoint(open_session(tmp_path / "checkpoint_last.pt"), 0, 1)
    expected = {record["statistics"]: record["nll"] for record in records}
    for name, way in (("each batch's own", "batch"), ("running", "running")):
        assert nll[name] == pytest.approx(expected[way], rel=1e-6)  # a sum in float32
    # In float32 and float64, by other sums.
    assert nll["of all tokens"] == pytest.approx(expected["pooled"], abs=1e-4)
    assert len(nll) == 14
    # Both sides of these data are of one length; every other setting changes something.
    assert nll["16 bins of target length"] == nll["16 bins of source length"]
    assert len({*nll.values()}) == 13
