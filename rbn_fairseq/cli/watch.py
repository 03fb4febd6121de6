"""`rbn watch`: running trainings in the terminal, a row each."""

import math
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.cli.options import Json, Overwrite, check_json, console, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rbn_fairseq.report.runs import Run

__all__ = ["watch"]

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
    if run.progress.validating:
        return "validating"
    return "training" if run.progress.values else "starting"


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
    if row["state"] == "stalled" and written is not None:
        row["silent_since"] = datetime.fromtimestamp(written).isoformat(" ", "minutes")
    return {key: value for key, value in row.items() if value is not None}


def _has_json(entry: tuple[str, Any]) -> bool:
    return not isinstance(entry[1], float) or math.isfinite(entry[1])


def _display(rows: Sequence[dict[str, Any]], lines: Optional[int]) -> list["RenderableType"]:
    """Draw the table and the runs' warnings, in so many lines; those that have ended go first."""
    from rich.table import Table
    from rich.text import Text

    columns = [column for column in _COLUMNS if any(column[1] in row for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold" if lines is None else "ellipsis", min_width=6)
    table.add_column("state", no_wrap=True)
    for title in ("epoch", "update", *(title for title, *_ in columns), "left\nh:mm"):
        table.add_column(title, justify="right", no_wrap=True)
    room = len(rows) if lines is None else max(1, lines - 3)  # header, and the line of what is left
    shown = sorted(sorted(range(len(rows)), key=lambda n: rows[n]["ended"])[:room])
    for row in map(rows.__getitem__, shown):
        state = Text(row["state"], style=_STYLES.get(row["state"], ""))
        epoch = f"{row['epoch']:.2f}" if "epoch" in row else "-"
        epoch += f"/{row['max_epoch']}" if "max_epoch" in row else ""
        update = f"{row['update']:,}" if "update" in row else "-"
        numbers = [form.format(row[key]) if key in row else "-" for _, key, form in columns]
        left = "{}:{:02}".format(*divmod(int(row.get("seconds_left", 0)) // 60, 60))
        left = left if "seconds_left" in row else "-"
        table.add_row(Text(row["run"]), state, epoch, update, *numbers, left)
    notes = []
    for row in map(rows.__getitem__, shown):
        if "silent_since" in row:
            notes.append(f"{row['run']}: its log has no new line since {row['silent_since']}")
        if "warning" in row:
            notes.append(f"{row['run']}: {row['warning']}")
    if len(shown) < len(rows):
        notes = [f"and {len(rows) - len(shown)} more; a higher terminal shows them", *notes]
    if lines is not None:
        notes = notes[: max(0, lines - 2 - len(shown))]
    return [table, *(Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in notes)]


class _Watched:
    """Runs, each read again when its files have changed."""

    def __init__(self, named: Sequence[tuple[str, Path]]):
        self._named = named
        self._last: dict[Path, tuple[object, Run]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a run, as it is now."""
        from rbn_fairseq.report.runs import LOG, RUN_FILE, read_run

        rows = []
        for name, directory in self._named:
            files = (directory / file for file in (LOG, RUN_FILE, "tid.jsonl"))
            stats = [file.stat() for file in files if file.is_file()]
            stamp = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
            if self._last.get(directory, (None,))[0] != stamp:
                self._last[directory] = stamp, read_run(name, directory)
            rows.append(_row(self._last[directory][1], time.time()))
        return rows


def _check_is_run(directory: Path) -> None:
    from rbn_fairseq.report.runs import LOG, RUN_FILE

    if any((directory / file).is_file() for file in (LOG, RUN_FILE)):
        return
    what = "has no training in it" if directory.is_dir() else "does not exist"
    way_out = f"`rbn train DATA-BIN --save-dir {directory}` writes {LOG} and {RUN_FILE} there."
    inside = sorted(directory.glob(f"*/{LOG}"))
    if inside:
        way_out = f"Its folders have, such as `{inside[0].parent}`: name those."
    raise ValueError(f"DIR: `{directory}` {what}. {way_out}")


@plain_errors()
def watch(
    runs: Annotated[
        list[str], typer.Argument(metavar="[NAME=]DIR...", help="Save directories of trainings.")
    ],
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Print how it is now, and end.")] = False,
    json: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Watch trainings: progress, losses, TID, speed, time left, trouble; ends when all have ended.

    What is not a terminal gets how it is now. `loss` is that of training, with label smoothing;
    `valid nll` of the last validation, in bits per token; TID the average over batch norms at its
    last measurement. Ctrl-C ends watching, not the trainings.
    """
    from rich.console import Group
    from rich.live import Live

    from rbn_fairseq.report.runs import name_runs

    check_json(json, overwrite=overwrite)
    named = name_runs(runs)
    for _, directory in named:
        _check_is_run(directory)
    watched, out = _Watched(named), console(json)
    rows = watched.rows()
    if once or not out.is_terminal:
        for part in _display(rows, lines=None):
            out.print(part, soft_wrap=not out.is_terminal)
    else:
        with Live(console=out, auto_refresh=False) as live:
            try:
                while True:
                    live.update(Group(*_display(rows, out.size.height)), refresh=True)
                    if all(row["ended"] for row in rows):
                        break
                    time.sleep(interval)
                    rows = watched.rows()
            except KeyboardInterrupt:
                pass
    write_json(json, [dict(filter(_has_json, row.items())) for row in rows])
