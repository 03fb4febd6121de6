"""Commands of ``rbn`` that run side by side."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from rich.console import Console
from rich.progress import Progress

_RBN = (sys.executable, "-m", "rbn_fairseq")
# One thread a job: the tensors are small. glibc returns the memory of large tensors to the system
# and asks for it again at every update unless these thresholds keep it, a fifth of the time.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "200000000",
    "PYTHONWARNINGS": "ignore",
    "LOGLEVEL": "INFO",  # the progress is read from the log
    "LC_ALL": "C.UTF-8",
}
_POLL = 0.5  # seconds

#: Arguments of commands that run one after another, each by the file for what it prints, which is
#: there once the command has run to its end.
Commands = Mapping[Path, Sequence[str]]


def run_jobs(
    jobs: Mapping[str, Commands], trained: Callable[[str], float], workers: int, console: Console
) -> None:
    """Run what is left of jobs, ``workers`` at a time.

    If a job fails or the user interrupts, the others are stopped.

    Args:
        jobs: their commands, by the names that are shown.
        trained: returns the part of a job's training that is done, between 0 and 1.
        workers: jobs at a time.
        console: shows which command begins; a terminal also how far the trainings are.

    Raises:
        ValueError: if a command fails; the message ends with the last lines it printed.
    """
    stop = Event()
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)

    def run(name: str, commands: Commands) -> None:
        bar = bars.add_task(name, total=1)
        for output, arguments in commands.items():
            if output.exists():
                continue
            console.print(f"{name}: rbn {arguments[0]}")
            out, err = (output.with_name(output.name + end) for end in (".unfinished", ".err"))
            with (
                out.open("wb") as stdout,
                err.open("wb") as stderr,
                subprocess.Popen(
                    [*_RBN, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env={**os.environ, **_ENVIRONMENT},
                ) as process,
            ):
                while process.poll() is None:
                    bars.update(bar, completed=trained(name))
                    if stop.wait(_POLL):
                        process.terminate()
                        break
            if process.returncode != 0:
                printed = out.read_text(errors="replace") + err.read_text(errors="replace")
                raise ValueError(
                    f"{name}: `rbn {arguments[0]}` failed with exit status {process.returncode}. "
                    f"The end of `{out}` and `{err.name}`:\n" + "\n".join(printed.splitlines()[-5:])
                )
            out.replace(output)

    with bars, ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, name, commands) for name, commands in jobs.items()]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
