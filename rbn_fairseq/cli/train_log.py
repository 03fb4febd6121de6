"""The log file of a training: log records, and progress as JSON lines for any --log-format."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from fairseq.logging import progress_bar

from rbn_fairseq.cli.fairseq_commands import LOG_DATES, LOG_FORMAT


class _Recorded(progress_bar.BaseProgressBar):
    """A progress bar of fairseq's whose values also go to a file, as its JSON bar writes them."""

    def __init__(self, iterable: Any, epoch: int, shown: Any, file: logging.Handler) -> None:
        super().__init__(iterable, epoch)
        self._shown, self._file = shown, file
        self._batch = self.n

    def __iter__(self) -> Iterator[Any]:
        for self._batch, sample in enumerate(self._shown, start=self.n):  # noqa: B020
            yield sample

    def log(self, stats: Any, tag: Optional[str] = None, step: Optional[int] = None) -> None:
        """Show and record values within an epoch; fairseq calls it every --log-interval."""
        self._shown.log(stats, tag=tag, step=step)
        place = (self._batch + 1) / len(self)
        self._record(tag, {"epoch": self.epoch, "update": round(self.epoch - 1 + place, 3)}, stats)

    def print(self, stats: Any, tag: Optional[str] = None, step: Optional[int] = None) -> None:
        """Show and record the values of an epoch."""
        self._shown.print(stats, tag=tag, step=step)
        named = {f"{tag}_{name}" if tag else name: value for name, value in stats.items()}
        self._record(tag, {"epoch": self.epoch}, named)

    def update_config(self, config: Any) -> None:
        """Pass on the configuration."""
        self._shown.update_config(config)

    def _record(self, tag: Optional[str], place: dict[str, Any], stats: Any) -> None:
        values = {name: progress_bar.format_stat(value) for name, value in stats.items()}
        line = json.dumps(place | values)
        about = {"name": tag or __name__, "levelno": logging.INFO, "levelname": "INFO", "msg": line}
        self._file.handle(logging.makeLogRecord(about))


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Append to a file what is logged meanwhile, and the values of progress bars as JSON lines.

    What a progress bar shows in its own format is left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path, encoding="utf-8")
    # A full disk would make a traceback of every line; the next checkpoint reports it.
    file.handleError = lambda record: None  # type: ignore[method-assign]
    file.setFormatter(logging.Formatter(LOG_FORMAT, LOG_DATES))
    file.addFilter(lambda record: record.module != "progress_bar")
    make = progress_bar.progress_bar

    def recorded(iterable: Any, *args: Any, epoch: int, **options: Any) -> _Recorded:
        return _Recorded(iterable, epoch, make(iterable, *args, epoch=epoch, **options), file)

    root = logging.getLogger()
    root.addHandler(file)
    try:
        with mock.patch.object(progress_bar, "progress_bar", recorded):
            yield
    finally:
        root.removeHandler(file)
        file.close()
