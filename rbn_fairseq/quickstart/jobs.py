"""Commands that run side by side, with a display of how far they are and how long is left."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

__all__ = ["Job", "Step", "run_jobs", "seconds_left"]

_RBN = (sys.executable, "-m", "rbn_fairseq")
# One thread a job: the tensors are small. glibc returns the memory of large tensors to the system
# and asks for it again at every update unless it is told to keep it, a fifth of the time.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "200000000",
    "PYTHONWARNINGS": "ignore",
    "LOGLEVEL": "INFO",  # the display reads the log
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True)
class Step:
    """One command of a job.

    Attributes:
        label: what the display says.
        arguments: of ``rbn``.
        output: file for what the command prints.
        weight: expected part of the job's time.
        done: tells how far the command is, between 0 and 1.
        kept: tells how much of that a restart of the command would keep.
    """

    label: str
    arguments: tuple[str, ...]
    output: Path
    weight: float
    done: Callable[[], float] = lambda: 0.0
    kept: Callable[[], float] = lambda: 0.0

    @property
    def mark(self) -> Path:
        """File that tells, when the command has run to its end, what it was."""
        return self.output.with_name(f".{self.output.name}.done")


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:  # in the child, before the command starts
    if _LIBC is not None:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass
class Job:
    """Commands that run one after another, each on what those before it made.

    A command is skipped if it and all before it have run to their ends, with these arguments.
    """

    name: str
    steps: Sequence[Step]
    label: str = field(default="waiting", init=False)
    _begun: Optional[float] = field(default=None, init=False)
    _ended: Optional[float] = field(default=None, init=False)
    _before: float = field(default=0.0, init=False)
    _stopped: bool = field(default=False, init=False)
    _process: Optional[subprocess.Popen[bytes]] = field(default=None, init=False)

    def _history(self, number: int) -> str:
        return "\n".join(shlex.join(step.arguments) for step in self.steps[: number + 1])

    def _finished(self) -> int:
        """Count the steps that need not run."""
        for number, step in enumerate(self.steps):
            if not step.mark.exists() or step.mark.read_text() != self._history(number):
                return number
        return len(self.steps)

    def is_finished(self) -> bool:
        """Tell whether there is nothing left to run."""
        return self._finished() == len(self.steps)

    def _fraction(self, progress: Callable[[Step], float]) -> float:
        finished = self._finished()
        done = sum(step.weight for step in self.steps[:finished])
        if finished < len(self.steps):
            done += self.steps[finished].weight * min(1.0, progress(self.steps[finished]))
        return done / sum(step.weight for step in self.steps)

    def fraction(self) -> float:
        """Return the part of the job that is done."""
        return self._fraction(lambda step: step.done())

    def seconds_a_job(self) -> Optional[float]:
        """Estimate what the whole job takes, once enough of it ran in this process."""
        gained = self.fraction() - self._before
        if self._begun is None or gained < 0.01:
            return None
        return ((self._ended or time.monotonic()) - self._begun) / gained

    def run(self) -> None:
        """Run what is left.

        Raises:
            ValueError: if a command fails; the message ends with the last lines it printed.
        """
        self._before, self._begun = self._fraction(lambda step: step.kept()), time.monotonic()
        for number in range(self._finished(), len(self.steps)):
            if not self._stopped:
                self.label = self.steps[number].label
                self._run(self.steps[number])
            if not self._stopped:
                self.steps[number].mark.write_text(self._history(number))
        self.label, self._ended = "done", time.monotonic()

    def _run(self, step: Step) -> None:
        step.output.parent.mkdir(parents=True, exist_ok=True)
        step.mark.unlink(missing_ok=True)
        command = [*_RBN, *step.arguments]
        errors = step.output.with_name(step.output.name + ".err")
        with step.output.open("wb") as out, errors.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        if self._stopped:  # while the command was starting
            self._process.terminate()
        status = self._process.wait()
        if self._stopped:
            return
        if status != 0:
            log = errors if errors.stat().st_size > 0 else step.output
            said = log.read_text(errors="replace").splitlines()[-5:]
            full = shutil.disk_usage(step.output.parent).free < 2**25
            hint = " The disk is full: make room, and call again." if full else ""
            raise ValueError(
                f"{self.name}: {step.label} failed with exit status {status}.{hint} The last lines "
                f"of `{log}`:\n" + "\n".join(line[:300] for line in said)
            )

    def stop(self) -> None:
        """End the running command."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def seconds_left(jobs: Sequence[Job], workers: int) -> Optional[float]:
    """Estimate when all jobs are done, ``None`` = not known yet.

    The jobs' remaining times, in their order, each to the worker that is free first.
    """
    known = [seconds for job in jobs if (seconds := job.seconds_a_job())]
    if not known:
        return None
    usual = sum(known) / len(known)
    loads = [0.0] * workers
    for job in jobs:
        loads.sort()
        loads[0] += (1 - job.fraction()) * (job.seconds_a_job() or usual)
    return max(loads)


def _left(seconds: Optional[float]) -> str:
    if seconds is None:
        return "time left: not known yet"
    if seconds < 60:
        return "less than a minute left"
    return f"about {seconds / 60:.0f} min left"


def _table(jobs: Sequence[Job], workers: int, begun: float) -> Table:
    table = Table.grid(padding=(0, 2))
    for job in jobs:
        done = job.fraction()
        table.add_row(job.name, job.label, ProgressBar(1.0, done, width=30), f"{100 * done:.0f} %")
    minutes, seconds = divmod(int(time.monotonic() - begun), 60)
    table.add_row("", f"{minutes}:{seconds:02d} so far", _left(seconds_left(jobs, workers)), "")
    return table


def run_jobs(jobs: Sequence[Job], workers: int, console: Console, interval: float = 30.0) -> None:
    """Run jobs, ``workers`` at a time, and show how far they are.

    On a terminal the display is redrawn; elsewhere it is one line whenever a job goes on to its
    next step, and every ``interval`` seconds. If a job fails or the user interrupts, the others
    are stopped.

    Raises:
        ValueError: if a job fails.
    """
    begun = shown = time.monotonic()
    labels: list[str] = []
    pool = ThreadPoolExecutor(workers)
    live = Live(console=console, refresh_per_second=2, transient=True)
    try:
        running = [pool.submit(job.run) for job in jobs]
        with live:
            while True:
                done, unfinished = wait(running, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                if not unfinished:
                    return
                if console.is_terminal:
                    live.update(_table(jobs, workers, begun))
                elif [job.label for job in jobs] != labels or time.monotonic() - shown > interval:
                    labels, shown = [job.label for job in jobs], time.monotonic()
                    parts = [
                        f"{job.name}: {job.label} {100 * job.fraction():.0f} %" for job in jobs
                    ]
                    left = _left(seconds_left(jobs, workers))
                    console.print(" | ".join((*parts, left)), soft_wrap=True)
    finally:
        for job in jobs:
            job.stop()
        pool.shutdown(cancel_futures=True)
