"""The lines of tid.jsonl, on batches made so that every number is known."""

import math
from dataclasses import replace

import pytest
import torch

from rbn_fairseq.diagnostics import LayerMoments
from rbn_fairseq.measuring.records import norm_records, read_tid

# Two channels, two batches; sigma = (3, 4), so that ||sigma|| = 5.
MOMENTS = LayerMoments(
    mean=torch.tensor([[3.0, 4.0], [-3.0, -4.0]]).double() + 10,
    var=torch.tensor([[9.0, 16.0], [9.0, 16.0]]).double(),
    count=torch.tensor([7.0, 9.0]).double(),
    running=(torch.tensor([13.0, 14.0]).double(), torch.tensor([9.0, 36.0]).double()),
)


def one(total=2, *how):
    (record,) = norm_records({"a": MOMENTS}, 3, 30, total, *how)
    return record


def test_every_number():
    record = one()
    assert record == {
        "epoch": 3,
        "update": 30,
        "layer": "a",
        "mean_tid": pytest.approx(1.0),  # each batch's mean lies (3, 4) from (10, 10)
        "var_tid": 0.0,
        "mean_tid_error": 0.0,
        "var_tid_error": 0.0,
        "mean_conditional_tid": None,  # without lengths
        "var_conditional_tid": None,
        "mean_deviation": pytest.approx(5 / math.sqrt(200)),
        "var_deviation": 0.0,
        "mean_lag": pytest.approx(1.0),
        "var_lag": pytest.approx(2 / 5),
        "batches": 2,
        "total_batches": 2,
        "population": "mean-of-batches",
        "batching": "as-trained",
        "dropout": False,
        "length_groups": None,
    }


def test_one_batch_alone_is_told(caplog):
    fields = ("mean", "var", "count")
    single = replace(MOMENTS, **{name: getattr(MOMENTS, name)[:1] for name in fields})
    for estimate, told in (("running", 0), ("mean-of-batches", 1)):
        (record,) = norm_records({"a": single}, 3, 30, 1, estimate)
        assert len(caplog.messages) == told
    assert record["mean_tid"] == 0  # as it is its own population


def test_given_the_length():
    # Two more batches like these, of another length and (30, 40) further.
    moments = replace(
        MOMENTS,
        mean=torch.cat([MOMENTS.mean, MOMENTS.mean + torch.tensor([30.0, 40.0])]),
        var=torch.cat([MOMENTS.var, MOMENTS.var]),
        count=torch.ones(4).double(),
        length=torch.tensor([5.0, 5.0, 9.0, 9.0]).double(),
    )
    layers = {"a": moments, "b": replace(moments, length=None)}
    records = norm_records(layers, 3, 30, 4)
    record, without = records
    assert record["mean_conditional_tid"] == pytest.approx(2**0.5)
    assert record["var_conditional_tid"] == 0
    assert record["length_groups"] == 16
    assert read_tid(records, "conditional_tid") == {"a": (pytest.approx(2**0.5), 0)}
    assert without["mean_conditional_tid"] is without["length_groups"] is None
    (record,) = norm_records({"a": moments}, 3, 30, 4, "running")
    assert record["mean_conditional_tid"] is record["length_groups"] is None


def test_how_it_was_measured_is_told():
    record = one(8, "running", "mixed:4", True)
    told = {key: record[key] for key in ("population", "batching", "dropout", "total_batches")}
    assert told == {
        "population": "running", "batching": "mixed:4", "dropout": True, "total_batches": 8,
    }  # fmt: skip
    # sigma = (3, 6); distances of the batches' means (13, 14), (7, 6) to the running ones.
    scale = math.sqrt(45)
    distances = 0.0, 10 / scale
    assert record["mean_tid"] == pytest.approx(sum(distances) / 2)
    error = math.sqrt((1 - 2 / 8) / 2) * (distances[1] / math.sqrt(2))
    assert record["mean_tid_error"] == pytest.approx(error)


def test_norms_without_running_statistics_have_no_lag():
    bare = LayerMoments(MOMENTS.mean, MOMENTS.var, MOMENTS.count)
    (record,) = norm_records({"a": bare}, None, 0, 2)
    assert record["mean_lag"] is record["var_lag"] is record["epoch"] is None
