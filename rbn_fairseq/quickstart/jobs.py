"""Commands of ``rbn`` that run side by side, with one line of progress."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from rich.console import Console

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


@dataclass
class Job:
    """Commands of ``rbn`` that run one after another, each on the output of those before it.

    Attributes:
        name: for the display.
        commands: their arguments, by the file for what each prints, which is there once it has
            run to its end. The first is the training.
        trained: returns the part of the training that is done, between 0 and 1.
        process: the one that runs.
    """

    name: str
    commands: Mapping[Path, Sequence[str]]
    trained: Callable[[], float]
    process: Optional[subprocess.Popen[bytes]] = None

    def left(self) -> list[Path]:
        """Return the outputs of the commands that have not run to their ends."""
        return [output for output in self.commands if not output.exists()]

    def fraction(self) -> float:
        """Return the part of the job that is done: the training is nine tenths of it."""
        left, number = len(self.left()), len(self.commands)
        return 0.9 * self.trained() if left == number else 1 - 0.1 * left / max(1, number - 1)

    def advance(self) -> None:
        """Start the next command if none is running; note the end of one.

        Raises:
            ValueError: if a command failed; the message ends with the last lines it printed.
        """
        output = self.left()[0]
        arguments = self.commands[output]
        out, err = (output.with_name(output.name + end) for end in (".unfinished", ".err"))
        if self.process is None:
            with out.open("wb") as stdout, err.open("wb") as stderr:
                self.process = subprocess.Popen(
                    [*_RBN, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env={**os.environ, **_ENVIRONMENT},
                )
        status = self.process.poll()
        if status is None:
            return
        self.process = None
        if status != 0:
            printed = out.read_text(errors="replace") + err.read_text(errors="replace")
            raise ValueError(
                f"{self.name}: `rbn {arguments[0]}` failed with exit status {status}. The end of "
                f"`{out}` and `{err.name}`:\n" + "\n".join(printed.splitlines()[-5:])
            )
        out.replace(output)

    def __str__(self) -> str:
        left = self.left()
        if not left:
            return f"{self.name}: done"
        doing = "waiting" if self.process is None else self.commands[left[0]][0]
        return f"{self.name}: {doing} {100 * self.fraction():.0f} %"


def run_jobs(jobs: Sequence[Job], workers: int, console: Console, interval: float = 30.0) -> None:
    """Run what is left of jobs, ``workers`` at a time, and show their progress in a line.

    Elsewhere than on a terminal it is printed every ``interval`` seconds. If a job fails or the
    user interrupts, the others are stopped.

    Raises:
        ValueError: if a job fails.
    """
    begun = shown = time.monotonic()
    before = sum(job.fraction() for job in jobs)
    try:
        with console.status("starting") as display:
            while unfinished := [job for job in jobs if job.left()]:
                for job in unfinished[:workers]:
                    job.advance()
                time.sleep(_POLL)
                now, done = time.monotonic(), sum(job.fraction() for job in jobs)
                minutes = (now - begun) / 60 * (len(jobs) - done) / max(done - before, 1e-3)
                line = " | ".join([*map(str, jobs), f"about {minutes:.0f} min left"])
                display.update(line)
                if not console.is_terminal and now - shown > interval:
                    shown = now
                    console.print(line, soft_wrap=True)
    finally:
        for job in jobs:
            if job.process is not None:
                job.process.terminate()
                job.process.wait()
