"""Files of JSON lines: what a resumed or killed run leaves."""

import math

import pytest

from rbn_fairseq.measuring.records import read_records, write_records


def record(update, layer="a"):
    return {"update": update, "layer": layer, "value": 0.5}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "save" / "measured.jsonl"


def test_later_records_go(path):
    for update in (0, 10, 20):
        write_records(path, [record(update), record(update, "b")])
    write_records(path, [record(10, "new")])
    assert read_records(path) == [record(0), record(0, "b"), record(10, "new")]
    assert [file.name for file in path.parent.iterdir()] == ["measured.jsonl"]


def test_later_epochs_go(path):
    """Also those of fewer updates: a run that went back may have longer epochs."""
    write_records(path, [{"epoch": None, "update": 5}])  # of a checkpoint that has none
    for epoch, update in ((1, 10), (2, 20), (3, 30), (2, 35)):
        write_records(path, [{"epoch": epoch, "update": update}], one_an_epoch=True)
    assert [row["update"] for row in read_records(path)] == [5, 10, 35]


def test_empty_lines_are_passed_over(path):
    write_records(path, [record(0)])
    path.write_text(f"\n{path.read_text()}\n")
    write_records(path, [record(10)])
    assert read_records(path) == [record(0), record(10)]


def test_numbers_that_are_none(path):
    write_records(path, [{"update": 0, "singular": math.inf, "broken": math.nan}])
    (found,) = read_records(path)
    assert found["singular"] == math.inf and math.isnan(found["broken"])
