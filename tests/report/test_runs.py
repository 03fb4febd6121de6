"""Reading a run's files: against the checkpoints and the TID log of a real training."""

import json

import pytest

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.report.runs import read_run

BATCH = ("--norm-encoder", "batch", "--max-epoch", 2)


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """The same training, logged as JSON and in fairseq's simple form."""
    as_json, simple = tmp_path_factory.mktemp("json"), tmp_path_factory.mktemp("simple")
    form = ("--log-format", "json", "--log-file", as_json / "train.log")
    arguments = runs.train_arguments(data_bin, as_json, *BATCH, *form)
    arguments.remove("--no-progress-bar")
    runs.call("train", *arguments)
    (simple / "train.log").write_text(runs.train(data_bin, simple, *BATCH))
    return as_json, simple


@pytest.mark.parametrize("form", [0, 1])
def test_real_run(trained, form):
    directory = trained[form]
    run = read_run("batch", directory)
    assert [validation.epoch for validation in run.validations] == [1, 2]
    for validation in run.validations:
        state = read_checkpoint(directory / f"checkpoint{validation.epoch}.pt")
        assert validation.update == state["optimizer_history"][-1]["num_updates"]
        assert validation.loss == pytest.approx(state["extra_state"]["val_loss"], abs=1e-3)
        assert 0 < validation.nll_loss < validation.loss  # smoothing adds to it
    rows = runs.tid_rows(directory)
    assert [point.epoch for point in run.tid] == [0, 1, 2]
    layers = [layer for point in run.tid for layer in point.layers]
    assert [layer.mean_tid for layer in layers] == [row["mean_tid"] for row in rows]
    assert run.tid[-1].last.layer == "encoder.layers.1.final_layer_norm"
    last = rows[-4:]
    assert run.tid[-1].average.var_tid == pytest.approx(sum(r["var_tid"] for r in last) / 4)
    # The log's count begins a moment after the process and ends before it.
    assert 0.3 < run.seconds < 300


def test_both_forms_say_the_same(trained):
    first, second = (read_run("batch", directory) for directory in trained)
    assert first.validations == second.validations


def valid_line(epoch, update, loss):
    values = {"valid_loss": str(loss), "valid_nll_loss": "1", "valid_num_updates": str(update)}
    return json.dumps({"epoch": epoch, **values}) + "\n"


def test_resumed_run(tmp_path):
    # Killed in epoch 3, gone on from the checkpoint of epoch 1, killed while it wrote a line.
    lines = [(1, 10, 5.0), (2, 20, 4.0), (2, 20, 3.5), (3, 30, 3.0)]
    text = "".join(valid_line(*line) for line in lines) + valid_line(4, 40, 2.0)[:30]
    (tmp_path / "train.log").write_text(text)
    run = read_run("x", tmp_path)
    assert [(v.epoch, v.loss) for v in run.validations] == [(1, 5.0), (2, 3.5), (3, 3.0)]
    assert run.tid == () and run.scores == {} and run.seconds is None


def test_run_restarted_from_an_earlier_checkpoint(tmp_path):
    lines = [(1, 10, 5.0), (2, 20, 4.0), (3, 30, 3.0), (2, 20, 4.5)]
    (tmp_path / "train.log").write_text("".join(valid_line(*line) for line in lines))
    assert [v.loss for v in read_run("x", tmp_path).validations] == [5.0, 4.5]


def test_time_of_resumed_runs(tmp_path):
    start = "{'_name': None, 'common': {}}\n"
    inner = '{"epoch": 2, "update": 1.5, "loss": "3", "train_wall": "3", "wall": "130"}\n'
    first, second, later = (
        json.dumps({"epoch": epoch, "train_loss": "4", "train_train_wall": "9", "train_wall": wall})
        + "\n"
        for epoch, wall in ((1, "100"), (2, "120.5"), (3, "200"))
    )
    log = start + valid_line(1, 10, 5.0) + first + inner  # killed in epoch 2
    log += start + second + second + later + inner  # fairseq writes some lines more than once
    (tmp_path / "train.log").write_text(log)
    assert read_run("x", tmp_path).seconds == 300


def test_loss_without_smoothing(tmp_path):
    # fairseq's cross_entropy logs one loss only: the other would be the same.
    line = '{"epoch": 1, "valid_loss": "4.5", "valid_num_updates": "9"}\n'
    (tmp_path / "train.log").write_text(line)
    assert read_run("x", tmp_path).validations[0].nll_loss == 4.5


def test_no_log(tmp_path):
    with pytest.raises(ValueError, match="train.log` has no validation yet.*--log-file"):
        read_run("x", tmp_path)
