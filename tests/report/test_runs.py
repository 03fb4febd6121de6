"""Reading a run's files: against the checkpoints and the TID log of a real training."""

import json
import math

import pytest
from run_directories import configuration, tid_line, write_lines, write_run

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.report.runs import read_run, read_runs
from rbn_fairseq.report.setups import describe

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
    assert run.ended and run.settings["model"]["norm_encoder"] == "batch"
    setup = describe(run)
    assert (setup.norm, setup.placement, setup.seed, setup.depth) == ("BN", "Post-Norm", 1, 2)
    assert dict(setup.sizes)["encoder_ffn_embed_dim"] == 128
    assert run.train[1].values["gnorm"] > 0 and run.problems == ()
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


def test_loss_without_smoothing(tmp_path):
    # fairseq's cross_entropy logs one loss only: the other would be the same.
    line = '{"epoch": 1, "valid_loss": "4.5", "valid_num_updates": "9"}\n'
    (tmp_path / "train.log").write_text(line)
    assert read_run("x", tmp_path).validations[0].nll_loss == 4.5


def test_what_is_missing_is_told(tmp_path):
    run = read_run("x", tmp_path / "none")
    assert run.validations == () and "no directory" in run.problems[0]
    run = read_run("x", tmp_path)
    assert len(run.problems) == 1 and "`rbn train` writes it" in run.problems[0]
    (tmp_path / "train.log").write_text("nothing yet\n")
    settings, validation = read_run("x", tmp_path).problems
    assert "settings are unknown" in settings and "no validation yet" in validation


def test_nothing_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no run has a validation yet.*rbn train"):
        read_runs([("a", tmp_path / "a"), ("b", tmp_path / "b")])
    run = write_run(tmp_path / "run", configuration())
    assert [it.name for it in read_runs([("a", run), ("b", tmp_path / "b")])] == ["a", "b"]
    with pytest.raises(ValueError, match=r"called the same \(a\).*NAME=DIR"):
        read_runs([("a", run), ("a", run)])


def test_measurements(tmp_path):
    more = {
        "mean_deviation": 0.11,
        "near_eps": 0.5,
        "total_batches": 1100,
        "batching": "as-trained",
    }
    lines = [tid_line(e, n, 0.01, 0.02, **more) for e in (0, 1) for n in (0, 1)]
    lines[0]["mean_drift"] = None
    directory = write_run(tmp_path / "run", configuration())
    write_lines(directory / "tid.jsonl", [*lines, tid_line(1, 1, 0.05, 0.06, later="unknown")])
    write_lines(directory / "tid_batching.jsonl", [
        tid_line(3, n, 0.01, 0.02, batching=way, independent_mean_tid=0.5)
        for way in ("random", "mixed:4") for n in (0, 1)
    ])  # fmt: skip
    place = {"epoch": 1, "update": 9, "layer": 2, "place": "stream", "tokens": 9, "channels": 4}
    values = {"c_50": 2.0, "c_80": math.inf, "c_max": math.nan}
    write_lines(directory / "conditioning.jsonl", [place | values])
    cost = {"checkpoint": "x", "update": 9, "statistics": "running", "nll": 4.0, "cost": 0.5}
    write_lines(directory / "cost.jsonl", [cost | {"cost_random": 0.25, "tokens": 1}])
    run = read_run("x", directory)
    first, last = run.tid
    assert first.layers[0].mean_deviation == 0.11 and first.layers[0].near_eps == 0.5
    assert first.layers[0].mean_drift is None and first.layers[0].spread is None
    assert (first.batches, first.total_batches) == (200, 1100)
    assert last.last.mean_tid == 0.05  # measured twice: the later counts
    assert last.average.mean_tid == pytest.approx(0.03) and last.average.mean_deviation is None
    assert [(it.batching, len(it.layers)) for it in run.batching] == [("random", 2), ("mixed:4", 2)]
    assert run.batching[0].last.independent_mean_tid == 0.5
    (it,) = run.conditioning
    assert it.c_80 == math.inf and math.isnan(it.c_max) and (it.layer, it.update) == (2, 9)
    assert (run.cost[0].cost, run.cost[0].cost_random) == (0.5, 0.25)
    assert all("no measurement of epochs 2, 3" in problem for problem in run.problems)


def test_damaged_files(tmp_path):
    directory = write_run(tmp_path / "run", configuration(), tid=(0.02, 0.1))
    whole = (directory / "tid.jsonl").read_text()
    broken = '{"epoch": 3, "upd\n{"layer": "a"}\n{"layer": "a", "mean_tid": "x", "var_tid": 1}\n'
    (directory / "tid.jsonl").write_text(whole + broken + "[1]\n")
    (directory / "score.json").write_text('{"sacrebleu": {"ble')
    run = read_run("x", directory)
    assert len(run.tid) == 4 and run.scores == {}
    tid, score = run.problems
    assert "`tid.jsonl`" in tid and "4 lines, the first is 17" in tid
    assert "`score.json`" in score and "score again" in score


@pytest.mark.parametrize(
    "wrong",
    [{"mean_tid": None}, {"var_tid": True}, {"mean_tid_error": "0"}, {"layer": 3}, {"epoch": "1"},
     {"update": 1.5}, {"update": None}, {"batches": math.nan}, {"dropout": 0}, {"batching": None},
     {"layers": [1]}],
)  # fmt: skip
def test_values_of_another_type(tmp_path, wrong):
    directory = write_run(tmp_path / "run", configuration())
    lines = [tid_line(epoch, 0, math.nan, 1, mean_drift=None) for epoch in range(4)]
    write_lines(directory / "tid.jsonl", [*lines, tid_line(4, 0, 0.1, 0.1) | wrong])
    run = read_run("x", directory)
    assert [it.epoch for it in run.tid] == [0, 1, 2, 3]
    assert "line 5" in run.problems[-1]


def test_values_of_other_files(tmp_path):
    directory = write_run(tmp_path / "run", configuration())
    own = {"epoch": 1, "update": 9, "layer": 2, "place": "stream", "c_50": 1, "c_80": 1, "c_max": 1}
    write_lines(directory / "conditioning.jsonl", [own, own | {"layer": "2"}, own | {"place": 1}])
    cost = {"update": 9, "statistics": "running", "nll": 4.0, "cost": 0.5}
    write_lines(directory / "cost.jsonl", [cost, cost | {"statistics": 1}, cost | {"cost": "1"}])
    run = read_run("x", directory)
    assert len(run.conditioning) == len(run.cost) == 1
    assert ["2 lines, the first is 2" in it for it in run.problems] == [True, True]


def test_a_measurement_without_all_layers(tmp_path):
    directory = write_run(tmp_path / "run", configuration(), tid=(0.02, 0.1))
    whole = (directory / "tid.jsonl").read_text().splitlines(keepends=True)
    (directory / "tid.jsonl").write_text("".join(whole)[:-20])  # killed while it was written
    run = read_run("x", directory)
    assert [it.epoch for it in run.tid] == [0, 1, 2] and run.tid[-1].last.var_tid == 0.1
    assert any("left out 1 measurement without layers" in it for it in run.problems)


def test_only_the_course_of_the_training(tmp_path):
    directory = write_run(tmp_path / "run", configuration())
    lines = [tid_line(epoch, 0, 0.1, 0.1) for epoch in (3, 0, 2, 1)]
    others = [
        lines[0] | {"batching": "random"},
        lines[0] | {"population": "pooled"},
        lines[0] | {"dropout": True},
        lines[0] | {"epoch": None},
    ]
    write_lines(directory / "tid.jsonl", [*others, *lines])
    run = read_run("x", directory)
    assert [it.epoch for it in run.tid] == [0, 1, 2, 3]
    assert {(it.batching, it.population, it.dropout) for it in run.tid} == {
        ("as-trained", "mean-of-batches", False)
    }
    told = " ".join(run.problems)
    for words in ("1 measurement with batches", "1 measurement of check", "2 measurements with an"):
        assert f"left out {words}" in told


def test_damaged_scores(tmp_path):
    directory = write_run(tmp_path / "run", configuration(), bleu=30.0)
    scores = {"sacrebleu": {"bleu": 30.0, "significance": {"p": None, "against": "ln"}}}
    (directory / "score.json").write_text(json.dumps(scores))
    run = read_run("x", directory)
    assert run.scores == {"sacrebleu": {"bleu": 30.0}}
    assert "without its p" in run.problems[0]
    (directory / "score.json").write_text('{"sacrebleu": {"bleu": NaN}, "tokenised": {"bleu": 3}}')
    run = read_run("x", directory)
    assert run.scores == {"tokenised": {"bleu": 3}}
    assert "sacrebleu" in run.problems[0] and "nan is not finite" in run.problems[0]


def test_plain_containers(tmp_path):
    directory = write_run(tmp_path / "run", configuration(), nll=(5.0,), tid=(0.02, 0.1), norms=2)
    found = read_run("x", directory).to_dict()
    assert found["tid"][0]["layers"][1] == {
        "layer": "encoder.layers.0.final_layer_norm", "mean_tid": 0.02, "var_tid": 0.1,
    }  # fmt: skip
    assert found["valid"][0]["nll_loss"] == 5.0 and found["seconds"] == 60
