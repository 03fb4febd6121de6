"""Jobs: order, resumption, failure, interruption, progress."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from rbn_fairseq.quickstart import jobs
from rbn_fairseq.quickstart.jobs import Job, Step, run_jobs

TREE = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def programs(monkeypatch, tmp_path):
    """Steps run `python -m rbn_fairseq CODE` with a stand-in that executes the code."""
    package = tmp_path / "stand_in" / "rbn_fairseq"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setattr(jobs, "_POLL", 0.02)


def step(directory, label, code, **options):
    return Step(
        label, (code,), directory / f"{label}.out", weight=options.pop("weight", 1), **options
    )


def console():
    return Console(file=io.StringIO(), width=200)


def test_steps_run_in_order_and_once(tmp_path):
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write"
    job = Job(
        "a",
        [
            step(tmp_path, "one", f"{note}('1')"),
            step(tmp_path, "two", f"print('said'); {note}('2')"),
        ],
    )
    run_jobs([job], 1, console())
    assert job.is_finished() and job.fraction() == 1
    assert (tmp_path / "two.out").read_text() == "said\n"
    run_jobs([job], 1, console())
    assert count.read_text() == "12"


def test_what_follows_a_changed_step_runs_again(tmp_path):
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write"
    for letters in ("abc", "abc", "axc", "xxc"):
        steps = [step(tmp_path, f"s{n}", f"{note}('{x}')") for n, x in enumerate(letters)]
        run_jobs([Job("a", steps)], 1, console())
    assert count.read_text() == "abc" + "" + "xc" + "xxc"
    # Stopped after the second of three: the third one's old outcome is of another second one.
    steps = [step(tmp_path, f"s{n}", f"{note}('{x}')") for n, x in enumerate("xyc")]
    run_jobs([Job("a", steps[:2])], 1, console())
    assert not Job("a", steps).is_finished()


def test_workers_at_a_time(tmp_path):
    # Each job notes when it begins and ends; with two workers at most two overlap.
    code = "import time; print(time.time()); time.sleep(0.3); print(time.time())"
    several = [Job(str(i), [step(tmp_path / str(i), "work", code)]) for i in range(4)]
    run_jobs(several, 2, console())
    spans = [
        [float(t) for t in (tmp_path / str(i) / "work.out").read_text().split()] for i in range(4)
    ]
    overlaps = [sum(b <= begin < e for b, e in spans) for begin, _ in spans]
    assert max(overlaps) <= 2


def test_failure_stops_the_others(tmp_path):
    # The worker of the one that fails takes the third up at once.
    bad = Job("bad", [step(tmp_path / "a", "train", "import sys; sys.exit('no such thing')")])
    slow = [Job(x, [step(tmp_path / x, "train", "import time; time.sleep(60)")]) for x in "bc"]
    begun = time.monotonic()
    message = "bad: train failed with exit status 1(.|\n)*no such thing"
    with pytest.raises(ValueError, match=message):
        run_jobs([slow[0], bad, slow[1]], 2, console())
    assert time.monotonic() - begun < 30
    assert not any(job.is_finished() for job in (bad, *slow))


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
    job = Job("a", [step(tmp_path, "train", SLEEP)])

    def interrupt():
        wait_for_pid(tmp_path / "train.out")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], 1, console())
    assert time.monotonic() - begun < 40  # the command would sleep longer
    assert not job.is_finished()
    assert not is_running(wait_for_pid(tmp_path / "train.out"))


@LINUX
def test_killed_parent_leaves_no_command_behind(tmp_path):
    program = (
        "import os; from pathlib import Path; from rich.console import Console\n"
        "from rbn_fairseq.quickstart.jobs import *\n"
        f"os.environ['PYTHONPATH'] = {os.environ['PYTHONPATH']!r}\n"  # the stand-in
        f"step = Step('train', ({SLEEP!r},), Path({str(tmp_path)!r}) / 'out', 1)\n"
        "run_jobs([Job('a', [step])], 1, Console())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment)
    child = wait_for_pid(tmp_path / "out")
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not is_running(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the command outlived its parent")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(tmp_path, terminal):
    out = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    code = "import time; time.sleep(0.2)"
    run_jobs([Job("layer", [step(tmp_path, "training", code, done=lambda: 0.5)])], 1, out)
    shown = out.file.getvalue()
    assert "layer: training" in shown and "50%" in shown.replace(" ", "")
