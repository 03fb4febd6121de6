"""Commands that run side by side, with bars of progress and an estimate of the time left."""

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
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["Job", "Step", "run_jobs"]

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
    """

    label: str
    arguments: tuple[str, ...]
    output: Path
    weight: float
    done: Callable[[], float] = lambda: 0.0

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
    """Commands that run one after another, each on the output of those before it.

    A command is skipped if it and all before it ran to their ends with the same arguments.
    """

    name: str
    steps: Sequence[Step]
    label: str = field(default="waiting", init=False)
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

    def fraction(self) -> float:
        """Return the part of the job that is done."""
        finished = self._finished()
        done = sum(step.weight for step in self.steps[:finished])
        if finished < len(self.steps):
            done += self.steps[finished].weight * min(1.0, self.steps[finished].done())
        return done / sum(step.weight for step in self.steps)

    def run(self) -> None:
        """Run what is left.

        Raises:
            ValueError: if a command fails; the message ends with the last lines it printed.
        """
        for number in range(self._finished(), len(self.steps)):
            if not self._stopped:
                self.label = self.steps[number].label
                self._run(self.steps[number])
            if not self._stopped:
                self.steps[number].mark.write_text(self._history(number))
        self.label = "done"

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
            last_lines = log.read_text(errors="replace").splitlines()[-5:]
            full = shutil.disk_usage(step.output.parent).free < 2**25
            hint = " The disk is full: make room, and call again." if full else ""
            raise ValueError(
                f"{self.name}: {step.label} failed with exit status {status}.{hint} The last lines "
                f"of `{log}`:\n" + "\n".join(line[:300] for line in last_lines)
            )

    def stop(self) -> None:
        """End the running command."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def _bars(jobs: Sequence[Job], console: Console) -> Progress:
    """Return a bar for each job, and one for all of them together."""
    progress = Progress(
        "{task.description}",
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=300.0,  # seconds; averaging and translating show no progress
    )
    for job in jobs:
        progress.add_task(job.name, total=1.0, completed=job.fraction())
    progress.add_task("all", total=len(jobs), completed=sum(job.fraction() for job in jobs))
    return progress


def _update(progress: Progress, jobs: Sequence[Job]) -> None:
    *bars, together = progress.task_ids
    fractions = [job.fraction() for job in jobs]
    for bar, job, fraction in zip(bars, jobs, fractions, strict=True):
        progress.update(bar, completed=fraction, description=f"{job.name}: {job.label}")
    progress.update(together, completed=sum(fractions))


def _line(progress: Progress, jobs: Sequence[Job]) -> str:
    """Return the progress of all jobs and the time left in one line."""
    *bars, together = progress.tasks
    left = together.time_remaining
    minutes = "time left: not known yet" if left is None else f"about {left / 60:.0f} min left"
    return " | ".join([*(f"{bar.description} {bar.percentage:.0f} %" for bar in bars), minutes])


def run_jobs(jobs: Sequence[Job], workers: int, console: Console, interval: float = 30.0) -> None:
    """Run jobs, ``workers`` at a time, and show their progress.

    On a terminal bars are redrawn; elsewhere one line is printed whenever a job goes on to its
    next step, and every ``interval`` seconds. If a job fails or the user interrupts, the others
    are stopped.

    Raises:
        ValueError: if a job fails.
    """
    printed = time.monotonic()
    labels: list[str] = []
    pool = ThreadPoolExecutor(workers)
    try:
        with _bars(jobs, console) as progress:
            running = [pool.submit(job.run) for job in jobs]
            while True:
                done, unfinished = wait(running, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                if not unfinished:
                    return
                _update(progress, jobs)
                now = [job.label for job in jobs]
                due = now != labels or time.monotonic() - printed > interval
                if due and not console.is_terminal:
                    labels, printed = now, time.monotonic()
                    console.print(_line(progress, jobs), soft_wrap=True)
    finally:
        for job in jobs:
            job.stop()
        pool.shutdown(cancel_futures=True)
