"""Commands that run side by side, with bars of progress and an estimate of the time left."""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
# and asks for it again at every update unless these thresholds keep it, a fifth of the time.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "200000000",
    "PYTHONWARNINGS": "ignore",
    "LOGLEVEL": "INFO",  # the display reads the log
    "LC_ALL": "C.UTF-8",
}
_POLL = 0.5  # seconds
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:  # in the child, before the command starts
    if _LIBC is not None:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Step:
    """One command of a job.

    Attributes:
        label: its name in the display.
        arguments: of ``rbn``.
        output: file for what the command prints.
        weight: expected part of the job's time.
        done: returns the part of the command that is done, between 0 and 1.
    """

    label: str
    arguments: tuple[str, ...]
    output: Path
    weight: float
    done: Callable[[], float] = lambda: 0.0

    @property
    def mark(self) -> Path:
        """File with the commands up to this one, once it has run to its end."""
        return self.output.with_name(f".{self.output.name}.done")

    @property
    def errors(self) -> Path:
        """File for what the command prints to stderr."""
        return self.output.with_name(f"{self.output.name}.err")


@dataclass
class Job:
    """Commands that run one after another, each on the output of those before it.

    A command is skipped if it and all before it ran to their ends with the same arguments.
    """

    name: str
    steps: Sequence[Step]
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

    def label(self) -> str:
        """Return what the job is doing."""
        if self.is_finished():
            return "done"
        return "waiting" if self._process is None else self.steps[self._finished()].label

    def advance(self) -> None:
        """Start the next command if none is running; mark a command that has ended.

        Raises:
            ValueError: if a command failed; the message ends with the last lines it printed.
        """
        number = self._finished()
        if number == len(self.steps):
            return
        step = self.steps[number]
        if self._process is None:
            self._process = self._start(step)
        status = self._process.poll()
        if status is None:
            return
        self._process = None
        if status != 0:
            log = step.errors if step.errors.stat().st_size > 0 else step.output
            last_lines = log.read_text(errors="replace").splitlines()[-5:]
            raise ValueError(
                f"{self.name}: {step.label} failed with exit status {status}. The last lines of "
                f"`{log}`:\n" + "\n".join(line[:300] for line in last_lines)
            )
        step.mark.write_text(self._history(number))

    def _start(self, step: Step) -> subprocess.Popen[bytes]:
        step.output.parent.mkdir(parents=True, exist_ok=True)
        step.mark.unlink(missing_ok=True)
        with step.output.open("wb") as out, step.errors.open("wb") as err:
            return subprocess.Popen(
                [*_RBN, *step.arguments],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def stop(self) -> None:
        """End the running command."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def _show(progress: Progress, jobs: Sequence[Job]) -> str:
    """Update the bars, and return their state in one line."""
    *bars, together = progress.tasks
    for bar, job in zip(bars, jobs, strict=True):
        description = f"{job.name}: {job.label()}"
        progress.update(bar.id, completed=job.fraction(), description=description)
    progress.update(together.id, completed=sum(bar.completed for bar in bars))
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
    printed, printed_labels = 0.0, [""]
    try:
        with progress:
            while unfinished := [job for job in jobs if not job.is_finished()]:
                for job in unfinished[:workers]:
                    job.advance()
                line, labels = _show(progress, jobs), [job.label() for job in jobs]
                due = labels != printed_labels or time.monotonic() - printed > interval
                if due and not console.is_terminal:
                    printed, printed_labels = time.monotonic(), labels
                    console.print(line, soft_wrap=True)
                time.sleep(_POLL)
    finally:
        for job in jobs:
            job.stop()
