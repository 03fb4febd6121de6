"""Jobs: order, resumption, failure, interruption, and the estimate of the time left."""

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

from rbn_fairseq.quickstart.jobs import Job, Step, run_jobs, seconds_left

TREE = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def programs(monkeypatch, tmp_path):
    """Steps run `python -m rbn_fairseq CODE` with a stand-in that executes the code."""
    package = tmp_path / "stand_in" / "rbn_fairseq"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


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
    again = Job("a", [step(tmp_path, "one", f"{note}('1')"), step(tmp_path, "two", f"{note}('3')")])
    assert not again.is_finished()  # the second command is another one
    run_jobs([again], 1, console())
    assert count.read_text() == "123"


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
    bad = Job("bad", [step(tmp_path / "a", "train", "import sys; sys.exit('no such thing')")])
    slow = Job("slow", [step(tmp_path / "b", "train", "import time; time.sleep(60)")])
    begun = time.monotonic()
    with pytest.raises(
        ValueError, match="bad: train failed with exit status 1(.|\n)*no such thing"
    ):
        run_jobs([slow, bad], 2, console())
    assert time.monotonic() - begun < 30
    assert not slow.is_finished() and not bad.is_finished()


def test_interruption_ends_the_commands(tmp_path):
    job = Job(
        "a",
        [
            step(
                tmp_path, "train", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
            )
        ],
    )
    threading.Timer(2.0, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], 1, console())
    assert not job.is_finished()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "train.out").read_text()), 0)


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_killed_parent_leaves_no_command_behind(tmp_path):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    parent = (
        "from pathlib import Path; from rich.console import Console\n"
        "from rbn_fairseq.quickstart.jobs import *\n"
        f"step = Step('train', ({code!r},), Path({str(tmp_path)!r}) / 'out', 1)\n"
        "run_jobs([Job('a', [step])], 1, Console())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    # The child then runs the real `rbn CODE`, which fails; so let it find the stand-in first.
    parent = f"import os; os.environ['PYTHONPATH'] = {os.environ['PYTHONPATH']!r}\n" + parent
    process = subprocess.Popen([sys.executable, "-c", parent], env=environment)
    out = tmp_path / "out"
    for _ in range(600):
        if out.exists() and out.read_text().endswith("\n"):
            break
        time.sleep(0.1)
    child = int(out.read_text())
    process.kill()
    process.wait()
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the command outlived its parent")


class Timed:
    """A job of known speed."""

    def __init__(self, fraction, seconds):
        self.fraction, self.seconds_a_job = (lambda: fraction), (lambda: seconds)


@pytest.mark.parametrize(
    "state, workers, expected",
    [
        ([(0.0, None), (0.0, None)], 2, None),
        ([(0.5, 100), (0.5, 100), (0.0, None)], 2, 150),  # 50, then the third alone
        ([(0.5, 100), (0.5, 100), (0.0, None)], 3, 100),
        ([(0.5, 100), (0.5, 100), (0.0, None)], 1, 200),
        ([(1.0, 100), (0.9, 200), (0.0, None)], 2, 150),  # the usual one takes 150
    ],
)
def test_time_left(state, workers, expected):
    left = seconds_left([Timed(*values) for values in state], workers)
    assert left == (None if expected is None else pytest.approx(expected))


def test_lines_without_a_terminal(tmp_path):
    out = console()
    job = Job(
        "layer", [step(tmp_path, "training", "import time; time.sleep(1.2)", done=lambda: 0.5)]
    )
    run_jobs([job], 1, out, interval=100)
    text = out.file.getvalue()
    assert "layer: training 50 %" in text and "left" in text
