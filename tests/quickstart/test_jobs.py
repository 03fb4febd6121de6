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
from rbn_fairseq.quickstart.jobs import run_jobs


@pytest.fixture(autouse=True)
def programs(monkeypatch, tmp_path):
    """Commands run `python -m rbn_fairseq CODE` with a stand-in that executes the code."""
    package = tmp_path / "stand_in" / "rbn_fairseq"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setattr(jobs, "_POLL", 0.02)


def job(directory, **commands):
    """A job whose commands execute code, by the stem of their output's name."""
    directory.mkdir(exist_ok=True)
    return {directory / f"{stem}.out": (code,) for stem, code in commands.items()}


def run(workers=1, console=None, **jobs):
    run_jobs(jobs, lambda name: 0.45, workers, console or Console(file=io.StringIO()))


def test_commands_run_in_order_and_once(tmp_path):
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write"
    both = job(tmp_path, one=f"{note}('1')", two=f"print('said'); {note}('2')")
    run(a=both)
    assert (tmp_path / "two.out").read_text() == "said\n"
    run(a=both)
    assert count.read_text() == "12"


def test_goes_on_with_what_was_cut_off(tmp_path):
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write"
    with pytest.raises(ValueError, match="status 3"):
        run(a=job(tmp_path, one=f"{note}('1')", two="exit(3)"))
    run(a=job(tmp_path, one=f"{note}('1')", two=f"{note}('2')"))
    assert count.read_text() == "12"


def test_workers_at_a_time(tmp_path):
    # Each job notes when it begins and ends; with two workers at most two overlap.
    code = "import time; print(time.time()); time.sleep(0.3); print(time.time())"
    run(2, **{str(i): job(tmp_path / str(i), work=code) for i in range(4)})
    spans = [
        [float(t) for t in (tmp_path / str(i) / "work.out").read_text().split()] for i in range(4)
    ]
    overlaps = [sum(b <= begin < e for b, e in spans) for begin, _ in spans]
    assert max(overlaps) <= 2


def test_failure_stops_the_others(tmp_path):
    # The worker of the one that fails takes the third up at once.
    bad = job(tmp_path / "a", train="import sys; sys.exit('no such thing')")
    slow = [job(tmp_path / x, train="import time; time.sleep(60)") for x in "bc"]
    begun = time.monotonic()
    message = "bad: (.|\n)* exit status 1(.|\n)*no such thing"
    with pytest.raises(ValueError, match=message):
        run(2, b=slow[0], bad=bad, c=slow[1])
    assert time.monotonic() - begun < 30
    assert not any(output.exists() for commands in (bad, *slow) for output in commands)


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
    def interrupt():
        wait_for_pid(tmp_path / "train.out.unfinished")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(a=job(tmp_path, train=SLEEP))
    assert time.monotonic() - begun < 40  # the command would sleep longer
    assert not (tmp_path / "train.out").exists()
    assert not is_running(wait_for_pid(tmp_path / "train.out.unfinished"))


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(tmp_path, terminal):
    out = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    run(console=out, layer=job(tmp_path, train="import time; time.sleep(0.5)"))
    assert "layer: rbn import time" in out.file.getvalue()
    assert (" 45%" in out.file.getvalue()) == terminal
