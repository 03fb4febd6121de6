"""`rbn watch`, on logs as a training leaves them in the middle of a line."""

import json
import os
import subprocess
import sys
import time

import pytest

from command import rbn, user_error
from rbn_fairseq.cli import watch
from rbn_fairseq.report.runs import name_runs

CONFIG = {"optimization": {"max_epoch": 4, "max_update": 0}, "common": {"log_interval": 100}}


def within(epoch, place, update, loss, **more):
    """A line of --log-interval: ``place`` is in epochs."""
    values = {"loss": loss, "wps": 4000.0, "ups": 2.0, "num_updates": update, **more}
    texts = {name: str(value) for name, value in values.items()}
    line = json.dumps({"epoch": epoch, "update": place, **texts})
    return f"x | INFO | train_inner | {line}\n"


def validation(epoch, update, nll):
    values = {"valid_loss": nll, "valid_nll_loss": nll, "valid_num_updates": update}
    line = json.dumps({"epoch": epoch, **{name: str(value) for name, value in values.items()}})
    return f"x | INFO | valid | {line}\n"


@pytest.fixture
def run(tmp_path):
    """Function that makes a run of a name and a log, with a started training's run.json."""

    def make(name, log, silent=0, config=CONFIG, began=0):
        directory = tmp_path / name
        directory.mkdir()
        content = {"config": config, "starts": [{"update": 0}, {"update": began}]}
        (directory / "run.json").write_text(json.dumps(content))
        (directory / "train.log").write_text(log)
        written = time.time() - silent
        os.utime(directory / "train.log", (written, written))
        return directory

    return make


def rows(*directories):
    """What is shown of runs, by their names."""
    return {row["run"]: row for row in watch._rows(name_runs([*map(str, directories)]), {})}


def test_a_running_training(run):
    # Resumed at update 100; 200 of 400 updates took 60 seconds since then.
    log = validation(1, 100, 5.5) + within(3, 3.0, 300, 4.5, rbn_penalty=0.25, wall=60)
    directory = run("bn", log + '2026 | INFO | train_inner | {"epoch": 4, "upd', began=100)
    lines = [
        {"epoch": 1, "update": update, "layer": layer, "mean_tid": tid, "var_tid": 2 * tid}
        for update, layer, tid in ((100, "a", 0.5), (200, "a", 0.02), (200, "b", 0.04))  # 100: cut
    ]
    (directory / "tid.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, lines))))
    row = rows(directory)["bn"]
    assert (row["state"], row["epoch"], row["update"]) == ("training", 3.0, 300)
    assert (row["loss"], row["valid_nll"], row["penalty"]) == (4.5, 5.5, 0.25)
    assert row["seconds_left"] == pytest.approx(30)
    assert row["tokens_per_second"] == 4000
    assert (row["mean_tid"], row["var_tid"]) == pytest.approx((3, 6))


def test_states(run):
    log = within(1, 0.5, 50, 6.0, wall=9)
    validates = 'x | INFO | fairseq_cli.train | begin validation on "valid" subset\n'
    over = "x | INFO | fairseq_cli.train | done training in 9.0 seconds\n"
    warning = "x | WARNING | some.module | [red]careful[/red]\n"
    directories = [
        run("training", log + validates + validation(1, 50, 5.0)),
        run("[bold]validating", log + warning + validates),
        run("over", log + over),
        run("resumed", log + over + within(1, 0.9, 90, 6.0)),
        run("nan", log + within(1, 0.9, 90, "nan")),
        run("silent", log, silent=700),
        run("slow", log.replace('"2.0"', '"0.2"'), silent=700),  # a line every 500 seconds
        run("new", ""),
    ]
    (directories[0] / "run.json").write_text('{"config": {}, "starts": 5}')
    (directories[2] / "run.json").unlink()
    read = rows(*directories)
    assert [row["state"] for row in read.values()] == [
        "training", "validating", "ended", "training", "diverged", "stalled", "training", "training"
    ]  # fmt: skip
    assert read["[bold]validating"]["warning"] == "[red]careful[/red]"
    assert "seconds_left" not in read["training"] and "seconds_left" in read["[bold]validating"]
    table = rbn("watch", *directories).stdout
    assert "[bold]validating: [red]careful[/red]" in table and "nan " in table


def test_it_follows_until_all_have_ended(run, monkeypatch):
    first, second = run("first", within(1, 0.5, 50, 6.0)), run("second", "done training in 1 s\n")
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        with (first / "train.log").open("a") as log:
            log.write(within(1, 0.6, 60, 5.0) if len(looks) == 1 else "done training in 9 s\n")

    monkeypatch.setattr("rbn_fairseq.cli.watch.time.sleep", sleep)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    shown = rbn("watch", first, second).stdout
    assert len(looks) == 2
    assert shown.index("6.000") < shown.index("5.000")


def test_without_torch_and_what_is_no_run(run, capsys, tmp_path):
    directory = run("over", "done training in 9.0 seconds\n")
    code = (
        "import sys; from rbn_fairseq.cli.app import app\n"
        f"app(['watch', {str(directory)!r}], standalone_mode=False)\n"
        "assert not {'torch', 'fairseq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    line = user_error(capsys, "watch", tmp_path)
    assert str(tmp_path) in line and str(directory) in line  # which its folder is
    assert "--save-dir" in user_error(capsys, "watch", tmp_path / "none")
