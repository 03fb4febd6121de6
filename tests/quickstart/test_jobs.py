"""Jobs: order, resumption, failure, interruption, progress."""

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from rbn_fairseq.quickstart import jobs
from rbn_fairseq.quickstart.jobs import Job, run_jobs


@pytest.fixture(autouse=True)
def programs(monkeypatch, tmp_path):
    """Commands run `python -m rbn_fairseq CODE` with a stand-in that executes the code."""
    package = tmp_path / "stand_in" / "rbn_fairseq"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setattr(jobs, "_POLL", 0.02)


def job(name, directory, trained=lambda: 0.0, **commands):
    """A job whose commands execute code, by the stem of their output's name."""
    directory.mkdir(exist_ok=True)
    files = {directory / f"{stem}.out": (code,) for stem, code in commands.items()}
    return Job(name, files, trained)


def console():
    return Console(file=io.StringIO(), width=200)


def test_commands_run_in_order_and_once(tmp_path):
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write"
    both = job("a", tmp_path, one=f"{note}('1')", two=f"print('said'); {note}('2')")
    run_jobs([both], 1, console())
    assert not both.left() and both.fraction() == 1
    assert (tmp_path / "two.out").read_text() == "said\n"
    run_jobs([both], 1, console())
    assert count.read_text() == "12"


def test_goes_on_with_what_was_cut_off(tmp_path):
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write"
    with pytest.raises(ValueError, match="status 3"):
        run_jobs([job("a", tmp_path, one=f"{note}('1')", two="exit(3)")], 1, console())
    whole = job("a", tmp_path, one=f"{note}('1')", two=f"{note}('2')")
    assert whole.fraction() == 0.9
    run_jobs([whole], 1, console())
    assert count.read_text() == "12"


def test_workers_at_a_time(tmp_path):
    # Each job notes when it begins and ends; with two workers at most two overlap.
    code = "import time; print(time.time()); time.sleep(0.3); print(time.time())"
    several = [job(str(i), tmp_path / str(i), work=code) for i in range(4)]
    run_jobs(several, 2, console())
    spans = [
        [float(t) for t in (tmp_path / str(i) / "work.out").read_text().split()] for i in range(4)
    ]
    overlaps = [sum(b <= begin < e for b, e in spans) for begin, _ in spans]
    assert max(overlaps) <= 2


def test_failure_stops_the_others(tmp_path):
    # The worker of the one that fails takes the third up at once.
    bad = job("bad", tmp_path / "a", train="import sys; sys.exit('no such thing')")
    slow = [job(x, tmp_path / x, train="import time; time.sleep(60)") for x in "bc"]
    begun = time.monotonic()
    message = "bad: (.|\n)* exit status 1(.|\n)*no such thing"
    with pytest.raises(ValueError, match=message):
        run_jobs([slow[0], bad, slow[1]], 2, console())
    assert time.monotonic() - begun < 30
    assert all(job.left() for job in (bad, *slow))


def wait_for_pid(out):
    for _ in range(600):
        if out.exists() and out.read_text().endswith("\n"):
            return int(out.read_text())
        time.sleep(0.1)
    pytest.fail("the command did not start")


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def interruptible():
    """Take interruptions even where the shell runs the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@LINUX
def test_interruption_ends_the_commands(tmp_path, interruptible):
    sleeping = job("a", tmp_path, train=SLEEP)

    def interrupt():
        wait_for_pid(tmp_path / "train.out.unfinished")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([sleeping], 1, console())
    assert time.monotonic() - begun < 40  # the command would sleep longer
    assert sleeping.left()
    assert not is_running(wait_for_pid(tmp_path / "train.out.unfinished"))


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(tmp_path, terminal):
    out = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    code = "import time; time.sleep(0.5)"
    run_jobs([job("layer", tmp_path, lambda: 0.5, train=code)], 1, out, interval=0.1)
    assert "layer: import time" in out.file.getvalue() and " 45 %" in out.file.getvalue()
