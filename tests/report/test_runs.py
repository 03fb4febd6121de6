"""Reading run directories."""

import json
import math
import os

import pytest

import runs as trainings
from rbn_fairseq.report.runs import name_runs, read_run
from run_directories import (
    configuration,
    log_text,
    tid_line,
    write_lines,
    write_run,
    write_run_file,
)


def test_log_of_the_simple_form(make):
    run = make("x", nll=(5.0, 4.5), train={"rbn_mean": 1.5})
    assert list(run.valid["epoch"]) == [1, 2] and list(run.valid["update"]) == [100, 200]
    assert list(run.valid["nll_loss"]) == [5.0, 4.5] and list(run.valid["bleu"]) == [11, 12]
    assert list(run.train["nll_loss"]) == [6.0, 5.5] and list(run.train["rbn_mean"]) == [1.5, 1.5]
    assert run.train["minutes"].iloc[-1] == 2 and run.problems == ()


def json_lines(*rows):
    return "".join(f"2026 | INFO | valid | {json.dumps(row)}\n" for row in rows)


def valid(epoch, update, nll="4.5"):
    names = ("valid_loss", "valid_nll_loss", "valid_num_updates")
    return {"epoch": epoch, **dict(zip(names, (nll, nll, str(update)), strict=True))}


def test_log_of_the_json_form(tmp_path):
    within = {"epoch": 1, "update": 0.5, "loss": "7"}
    text = json_lines(within, valid(1, 10), valid(2, 20, "nan")) + '{"epoch": 3, "valid'
    (tmp_path / "train.log").write_text(text)
    run = read_run("x", tmp_path)
    assert list(run.valid["update"]) == [10, 20] and math.isnan(run.valid["nll_loss"].iloc[1])
    assert any("1 lines" in problem for problem in run.problems)


def test_a_loss_without_label_smoothing_is_the_likelihood(tmp_path):
    """As criterions log it that have no other."""
    rows = [{"epoch": 1, f"{kind}_loss": "3.5", f"{kind}_num_updates": "10"}
            for kind in ("valid", "train")]  # fmt: skip
    (tmp_path / "train.log").write_text(json_lines(*rows))
    run = read_run("x", tmp_path)
    assert list(run.valid["nll_loss"]) == list(run.train["nll_loss"]) == [3.5]


def test_both_forms_of_a_real_run(data_bin, tmp_path):
    for form in ("simple", "json"):
        log = trainings.train(
            data_bin, tmp_path / form, "--max-epoch", 2, "--norm-encoder", "batch",
            "--log-format", form,
        )  # fmt: skip
        (tmp_path / form / "train.log").write_text(log)
    simple, as_json = (read_run("x", tmp_path / form) for form in ("simple", "json"))
    assert simple.problems == as_json.problems == ()
    assert simple.valid.equals(as_json.valid) and len(simple.valid) == 2
    assert list(simple.tid["epoch"].unique()) == [0, 1, 2]
    assert list(simple.tid["depth"].unique()) == [1, 2, 3, 4]
    assert simple.config["model"]["norm_encoder"] == "batch" and simple.vocabularies[0][0] == "de"


def test_of_an_epoch_that_is_there_twice_the_later_counts(tmp_path):
    rows = (valid(1, 10, "5"), valid(2, 20, "4"), valid(2, 20, "3.5"))
    (tmp_path / "train.log").write_text(json_lines(*rows))
    assert list(read_run("x", tmp_path).valid["nll_loss"]) == [5.0, 3.5]


def test_what_came_after_an_earlier_checkpoint_does_not_count(tmp_path):
    """From which the training went on, with longer epochs."""
    directory = write_run(tmp_path / "run", configuration(), nll=(5.0, 4.0, 3.0))
    back = (
        "x | INFO | fairseq.trainer | Loaded checkpoint runs/checkpoint1.pt (epoch 2 @ 100 updates)"
    )
    with (directory / "train.log").open("a") as log:
        log.write(f"{back}\n{json_lines(valid(2, 350))}")
    run = read_run("x", directory)
    assert list(run.valid["update"]) == [100, 350] and list(run.valid["nll_loss"]) == [5.0, 4.5]
    assert list(run.train["epoch"]) == [1] and list(run.valid["ended"]) == [True, False]
    assert run.last_epoch == 1
    with (directory / "train.log").open("a") as log:  # an attempt that ended at once; killed later
        for update in (100, 350):
            log.write(back.replace("@ 100", f"@ {update}") + "\n")
        log.write(json_lines(valid(2, 400), valid(3, 500)))
    run = read_run("x", directory)
    assert list(run.valid["update"]) == [100, 350, 400, 500]
    assert list(run.valid["ended"]) == [True, True, True, False]


def test_what_came_before_a_start_without_a_checkpoint_does_not_count(tmp_path):
    """The checkpoints were deleted, the log was not; the new training's epochs are longer."""
    directory = write_run(tmp_path / "run", configuration(), nll=(5.0, 4.0, 3.0))
    with (directory / "train.log").open("a") as log:
        log.write("x | INFO | fairseq.trainer | No existing checkpoint found runs/x/last.pt\n")
        log.write(json_lines(valid(1, 150), valid(2, 310)))
    run = read_run("x", directory)
    assert list(run.valid["update"]) == [150, 310] and not len(run.train)


def test_the_set_that_chooses_the_best_checkpoint(tmp_path):
    """The first of --valid-subset, whatever it is called; that of a part of the training data."""
    config = configuration(**{"dataset.valid_subset": "train_dev,valid"})
    directory = write_run(tmp_path / "run", config, nll=(5.0, 4.0))
    other = {
        name.replace("valid", "train_dev"): value for name, value in valid(2, 200, "3").items()
    }
    text = json_lines(other).replace("| valid |", "| train_dev |")
    text += "2026 | INFO | train_dev | epoch 003 | loss 2 | nll_loss 2 | num_updates 300\n"
    with (directory / "train.log").open("a") as log:
        log.write(text)
    run = read_run("x", directory)
    assert list(run.valid["nll_loss"]) == [3.0, 2.0] and list(run.valid["update"]) == [200, 300]
    assert list(run.train["epoch"]) == [1, 2]
    assert run.problems == (
        "Losses of validation are of `train_dev`, the first of --valid-subset.",
    )


def test_time_over_processes(tmp_path):
    directory = write_run(tmp_path / "run", configuration(), nll=(5.0, 4.0, 3.0))  # 60 s an epoch
    assert list(read_run("x", directory).train["minutes"]) == [1, 2, 3]
    write_run_file(directory, configuration(), starts=(0, 200))  # a second one made the last epoch
    assert read_run("x", directory).train["minutes"].iloc[-1] == 2 + 3
    for starts in ((0, 200, 100), (0, 150, 100)):  # back to what an earlier one had made
        write_run_file(directory, configuration(), starts=starts)
        assert read_run("x", directory).train["minutes"].iloc[-1] == 1 + 3
    log = directory / "train.log"  # of a resume within an epoch, after which fairseq's clock stood
    log.write_text(log.read_text().replace("wall 120", "wall 0").replace("wall 180", "wall 0"))
    write_run_file(directory, configuration(), starts=(0, 150))
    run = read_run("x", directory)
    assert run.train["minutes"][0] == 1 and run.train["minutes"][1:].isna().all()


def test_time_over_processes_without_a_run_file(tmp_path):
    """By the log's own lines of starts."""
    directory = write_run(tmp_path / "run", configuration(), nll=(5.0, 4.0, 3.0))
    (directory / "run.json").unlink()
    log = directory / "train.log"
    lines = log.read_text().replace("wall 180", "wall 60").splitlines(keepends=True)
    for number, update in ((0, 0), (5, 200)):  # the second process made the third epoch
        loaded = f"Loaded checkpoint x/checkpoint_last.pt (epoch 3 @ {update} updates)"
        begun = loaded if update else "No existing checkpoint found x/checkpoint_last.pt"
        lines.insert(number, f"x | INFO | fairseq.trainer | {begun}\n")
    log.write_text("".join(lines))
    assert list(read_run("x", directory).train["minutes"]) == [1, 2, 2 + 1]


def test_what_is_missing_is_told(tmp_path):
    run = read_run("x", tmp_path)
    settings, losses = run.problems
    assert "run.json" in settings and "train.log" in losses and not len(run.valid)
    assert not any("--task" in problem for problem in run.problems)  # there are several
    (tmp_path / "train.log").write_text(log_text(()))
    settings, validation = read_run("x", tmp_path).problems
    assert "run.json" in settings and "no validation" in validation


@pytest.mark.parametrize("text", ["", "[]", '{"config": 3}', '{"config": {"task": 3}}'])
def test_a_damaged_run_file(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "train.log").write_text(log_text((5.0,)))
    run = read_run("x", tmp_path)
    (problem,) = run.problems  # it is not said to be missing
    assert run.config == {} and "`run.json` is not" in problem


def test_names_tell_directories_apart(tmp_path, monkeypatch):
    for path in ("one/runs/bn", "two/runs/bn", "two/runs/ln", "lr=0.1"):
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def names(*paths):
        return [name for name, _ in name_runs(paths)]

    assert names("one/runs/bn", "two/runs/ln/") == ["bn", "ln"]
    assert names("one/runs/bn", "two/runs/bn") == ["one/runs/bn", "two/runs/bn"]
    assert names("x=one/runs/bn", "two/runs/bn", "lr=0.1") == ["x", "bn", "lr=0.1"]
    (tmp_path / "lr=0.1" / "checkpoint.pt").touch()
    assert names("lr=0.1/checkpoint.pt") == ["checkpoint.pt"]
    with pytest.raises(ValueError, match="called the same"):
        names("one/runs/bn", "one/runs/bn")


@pytest.mark.filterwarnings("error")  # pandas warns of what its next version refuses
def test_measurements_of_tid(tmp_path):
    directory = write_run(tmp_path / "run", configuration())
    lines = [tid_line(e, n, 0.01 * n, 0.02, mean_deviation=0.5) for e in (0, 1) for n in (0, 1)]
    again = tid_line(1, 1, 0.05, 0.06, unknown="later")
    average = tid_line(1, 1, 0.5, 0.6, checkpoint="run/average.pt")  # not the training's own
    whole = [*lines, again, average, tid_line(2, 0, 0.01, 0.02)]  # the third lacks a layer
    write_lines(directory / "tid.jsonl", whole)
    run = read_run("x", directory)
    assert list(run.tid["epoch"]) == [0, 0, 1, 1] and list(run.tid["depth"]) == [1, 2, 1, 2]
    assert list(run.tid["mean_tid"]) == [0.0, 0.01, 0.0, 0.05]
    assert set(run.tid["mean_deviation"].dropna()) == {0.5}
    assert any("lack layers" in problem for problem in run.problems)


def test_the_course_of_a_training_is_measured_alike(tmp_path):
    directory = write_run(tmp_path / "run", configuration(), nll=(5.0, 4.0))
    lines = [tid_line(epoch, 0, 0.01, 0.02) for epoch in (0, 1, 2)]
    ways = ({"batching": "random"}, {"population": "pooled"}, {"dropout": True}, {"epoch": None})
    others = [tid_line(2, 0, 0.5, 0.5) | way for way in ways]
    within = tid_line(2, 0, 0.4, 0.4, update=150)  # of an epoch the last counts
    write_lines(directory / "tid.jsonl", [*lines, within, *others])
    run = read_run("x", directory)
    assert list(run.tid["mean_tid"]) == [0.01] * 3
    assert len([problem for problem in run.problems if "left out" in problem]) == 1


def test_other_measurements(tmp_path):
    directory = write_run(tmp_path / "run", configuration())
    place = {"epoch": 1, "update": 9, "layer": 2, "place": "stream", "tokens": 9, "channels": 4}
    values = {"c_50": 2.0, "c_80": math.inf, "c_max": math.nan}
    write_lines(directory / "conditioning.jsonl", [place | values, place])
    cost = {"checkpoint": "x", "update": 9, "statistics": "running", "nll": 4.0, "cost": 0.5}
    write_lines(directory / "cost.jsonl", [cost, cost | {"nll": "four"}])
    run = read_run("x", directory)
    assert list(run.conditioning["c_80"]) == [math.inf] and list(run.cost["nll"]) == [4.0]
    assert len([problem for problem in run.problems if "left out" in problem]) == 2


def test_an_average_stands_behind_the_checkpoint_of_its_update(tmp_path):
    directory = write_run(tmp_path / "run", configuration())
    cost = {"update": 9, "statistics": "running", "nll": 4.0}
    lines = [cost | {"checkpoint": "checkpoint_last.pt", "cost": 0.5},
             cost | {"checkpoint": "average.pt", "cost": 0.1},
             cost | {"checkpoint": "runs/checkpoint.avg10.pt", "cost": 0.2},
             cost | {"checkpoint": "checkpoint_avg.pt", "cost": 0.3}]  # fmt: skip
    write_lines(directory / "cost.jsonl", lines)
    assert list(read_run("x", directory).cost["cost"]) == [0.1, 0.2, 0.3, 0.5]  # the last counts


def test_a_run_whose_settings_changed(make):
    run = make("x")
    content = json.loads((run.directory / "run.json").read_text())
    content["starts"] = [
        {"update": 0},
        {"update": 100, "changed": ["task.length_mixing"]},
    ]
    (run.directory / "run.json").write_text(json.dumps(content))
    (problem,) = read_run("x", run.directory).problems
    assert "update 100" in problem and "before: task.length_mixing." in problem
    content["starts"][1]["changed"] = 3
    (run.directory / "run.json").write_text(json.dumps(content))
    assert any("run.json" in problem for problem in read_run("x", run.directory).problems)


def test_a_score_from_before_the_training_went_on(make):
    run = make("x", bleu=30.0)
    last = run.directory / "checkpoint_last.pt"
    last.touch()
    for later, told in ((-9, 0), (9, 1)):
        os.utime(last, 2 * ((run.directory / "score.json").stat().st_mtime + later,))
        problems = read_run("x", run.directory).problems
        assert len(problems) == told and all("score.json" in problem for problem in problems)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"tokenised": {"bleu": "x"}}', '{"tokenised": {"signature": "x"}}']
)
def test_damaged_scores(make, text):
    run = make("x", bleu=30.0)
    assert run.scores["sacrebleu"]["bleu"] == 30
    (run.directory / "score.json").write_text(text)
    again = read_run("x", run.directory)
    assert again.scores == {} and any("score.json" in problem for problem in again.problems)


def test_scores_of_a_diverged_training_are_left_out(make):
    run = make("x")
    (run.directory / "score.json").write_text('{"test": {"ppl": NaN}, "valid": {"ppl": 50.0}}')
    again = read_run("x", run.directory)
    assert list(again.scores) == ["valid"] and not again.problems
