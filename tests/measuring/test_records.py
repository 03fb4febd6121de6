"""Files of JSON lines: what a resumed or killed run leaves."""

import json
import logging
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


def test_half_a_line_is_left_out(path, caplog):
    write_records(path, [record(0)])
    with path.open("a") as file:
        file.write('{"update": 5, "val')
    with caplog.at_level(logging.WARNING):
        assert read_records(path) == [record(0)]
    assert str(path) in caplog.text and '{"update": 5, "val' in caplog.text
    write_records(path, [record(5)])
    assert read_records(path) == [record(0), record(5)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_numbers_that_are_none(path):
    write_records(path, [{"update": 0, "singular": math.inf, "broken": math.nan}])
    (found,) = read_records(path)
    assert found["singular"] == math.inf and math.isnan(found["broken"])


@pytest.mark.parametrize("line", ["5", "[1]", '{"update": null}', "Infinity"])
def test_foreign_lines_do_not_end_a_training(path, line):
    write_records(path, [record(0)])
    with path.open("a") as file:
        file.write(line + "\n")
    write_records(path, [record(5)])
    assert read_records(path) == [record(0), record(5)]
