"""`rbn watch`: running trainings in the terminal, a row each."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rbn_fairseq.cli.options import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rbn_fairseq.report.runs import Run

__all__ = ["watch"]

_INTERVAL = 5.0  # seconds between two looks
_QUIET = 600.0  # seconds without a line in the log that any training may have
_STYLES = {"diverged": "bold red", "stalled": "yellow", "ended": "green"}
_COLUMNS = (  # title, key of a row, and how its number is written
    ("loss", "loss", "{:.3f}"),
    ("valid\nnll", "valid_nll", "{:.3f}"),
    ("mean\nTID %", "mean_tid", "{:.2f}"),
    ("var.\nTID %", "var_tid", "{:.2f}"),
    ("penalty", "penalty", "{:.3g}"),
    ("tokens\n/s", "tokens_per_second", "{:,.0f}"),
)


def _setting(run: "Run", group: str, name: str) -> Optional[int]:
    """Return a number of the configuration, unless it is unknown or 0."""
    value = run.config.get(group, {}).get(name)
    return value if isinstance(value, int) and value > 0 else None


def _seconds_left(run: "Run") -> Optional[float]:
    """Estimate the time left, at the pace of this process so far, its validations included.

    All epochs are taken to have as many updates as those so far.
    """
    values = run.progress.values
    update, epoch = values.get("update", 0), values.get("epoch", 0)
    limits = [_setting(run, "optimization", "max_update")]
    if (epochs := _setting(run, "optimization", "max_epoch")) and epoch:
        limits.append(round(epochs * update / epoch))
    known, made = [limit for limit in limits if limit], update - run.updates_before
    if not known or made <= 0 or "wall" not in values:
        return None
    return max(0.0, min(known) - update) * values["wall"] / made


def _state(run: "Run", written: Optional[float], now: float) -> str:
    """Say what a training does; ``written``: when its log last was, ``None`` = there is none."""
    losses = [run.progress.values.get("loss", 0.0), *run.valid["loss"].tail(1)]
    if not all(map(math.isfinite, losses)):
        return "diverged"
    if run.ended:
        return "ended"
    if written is None:
        return "no log"
    interval, pace = _setting(run, "common", "log_interval"), run.progress.values.get("ups")
    if now - written > max(_QUIET, 5 * interval / pace if interval and pace else 0):
        return "stalled"
    return "validating" if run.progress.validating else "training"


def _row(run: "Run", now: float) -> dict[str, Any]:
    """Return what is shown of a run, TID in per cent; what is not known is left out."""
    from rbn_fairseq.report.runs import LOG

    values, log = run.progress.values, run.directory / LOG
    row: dict[str, Any] = {"run": run.name, "ended": run.ended}
    written = log.stat().st_mtime if log.is_file() else None
    row["state"] = _state(run, written, now)
    row |= {key: values.get(key) for key in ("epoch", "update", "loss")}
    row |= {key: _setting(run, "optimization", key) for key in ("max_epoch", "max_update")}
    row["valid_nll"] = next(iter(run.valid["nll_loss"].tail(1)), None)
    if len(run.tid):
        last = run.tid[run.tid["update"] == run.tid["update"].max()]
        row |= (100 * last[["mean_tid", "var_tid"]].mean()).to_dict()
    row["penalty"], row["tokens_per_second"] = values.get("rbn_penalty"), values.get("wps")
    row["seconds_left"] = None if run.ended else _seconds_left(run)
    row["warning"] = run.progress.warning or None
    return {key: value for key, value in row.items() if value is not None}


def _display(rows: Sequence[dict[str, Any]]) -> list["RenderableType"]:
    """Draw the table, those that have ended last, and the runs' warnings."""
    from rich.table import Table
    from rich.text import Text

    columns = [column for column in _COLUMNS if any(column[1] in row for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", min_width=6)
    table.add_column("state", no_wrap=True)
    for title in ("epoch", "update", *(title for title, *_ in columns), "left\nh:mm"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: bool(row["ended"])):
        epoch = f"{row['epoch']:.2f}" if "epoch" in row else "-"
        epoch += f"/{row['max_epoch']}" if "max_epoch" in row else ""
        update = f"{row['update']:,}" if "update" in row else "-"
        numbers = [form.format(row[key]) if key in row else "-" for _, key, form in columns]
        left = "-"
        if "seconds_left" in row:
            left = "{}:{:02}".format(*divmod(int(row["seconds_left"]) // 60, 60))
        state = Text(row["state"], style=_STYLES.get(row["state"], ""))
        table.add_row(Text(row["run"]), state, epoch, update, *numbers, left)
    notes = [f"{row['run']}: {row['warning']}" for row in rows if "warning" in row]
    return [table, *(Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in notes)]


def _rows(
    named: Sequence[tuple[str, Path]], read: dict[Path, tuple[object, "Run"]]
) -> list[dict[str, Any]]:
    """Return a row a run, as it is now; ``read``: runs until their files change, by directory."""
    from rbn_fairseq.report.runs import LOG, RUN_FILE, read_run

    rows = []
    for name, directory in named:
        files = (directory / file for file in (LOG, RUN_FILE, "tid.jsonl"))
        stats = [file.stat() for file in files if file.is_file()]
        stamps = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
        if read.get(directory, (None,))[0] != stamps:
            read[directory] = stamps, read_run(name, directory)
        rows.append(_row(read[directory][1], time.time()))
    return rows


def _check_is_run(directory: Path) -> None:
    from rbn_fairseq.report.runs import LOG, RUN_FILE

    if any((directory / file).is_file() for file in (LOG, RUN_FILE)):
        return
    inside = [f", such as `{log.parent}`" for log in sorted(directory.glob(f"*/{LOG}"))]
    raise ValueError(
        f"DIR: `{directory}` has neither {LOG} nor {RUN_FILE}. Name the --save-dir of a training"
        f"{''.join(inside[:1])}."
    )


def watch(
    runs: Annotated[
        list[str], typer.Argument(metavar="[NAME=]DIR...", help="Save directories of trainings.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Print how it is now, and end.")] = False,
) -> None:
    """Watch trainings: progress, losses, TID, speed, time left, trouble; ends when all have ended.

    What is not a terminal gets how it is now. `loss` is that of training, with label smoothing;
    `valid nll` of the last validation, in bits per token; TID the average over batch norms at its
    last measurement. Ctrl-C ends watching, not the trainings.
    """
    from rich.console import Group
    from rich.live import Live

    from rbn_fairseq.report.runs import name_runs

    named = name_runs(runs)
    for _, directory in named:
        _check_is_run(directory)
    out = console()
    read: dict[Path, tuple[object, Run]] = {}
    rows = _rows(named, read)
    if once or not out.is_terminal:
        for part in _display(rows):
            out.print(part, soft_wrap=not out.is_terminal)
    else:
        with Live(console=out, auto_refresh=False) as live:
            try:
                while True:
                    live.update(Group(*_display(rows)), refresh=True)
                    if all(row["ended"] for row in rows):
                        break
                    time.sleep(_INTERVAL)
                    rows = _rows(named, read)
            except KeyboardInterrupt:
                pass
