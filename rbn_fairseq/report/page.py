"""One self-contained HTML page about some runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rbn_fairseq.report.figures import PANELS, colours, draw, to_svg
from rbn_fairseq.report.runs import Run

__all__ = ["render", "write_report"]


def _bleu(run: Run) -> Optional[dict[str, Any]]:
    return run.scores.get("sacrebleu") or run.scores.get("tokenised")


def render(
    title: str,
    runs: Sequence[Run],
    about: Sequence[tuple[str, str]] = (),
    copying: Optional[Mapping[str, Any]] = None,
    translations: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return the page.

    Args:
        title: its heading.
        runs: what the table and the figures show.
        about: what was run on what, as pairs of a name and a text.
        copying: score of copying the source, for the table's first row.
        translations: sentences with the keys ``source``, ``reference`` and the runs' names.
    """
    loader = PackageLoader("rbn_fairseq.report", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    drawn = [name for name in PANELS if name == "valid_loss" or any(run.tid for run in runs)]
    return environment.get_template("page.html").render(
        title=title,
        runs=runs,
        about=about,
        copying=copying,
        translations=translations,
        bleu=_bleu,
        colours=colours([run.name for run in runs]),
        figures={name: Markup(to_svg(draw([name], runs))) for name in drawn},
    )


def write_report(directory: Path, title: str, runs: Sequence[Run]) -> list[Path]:
    """Write ``index.html`` and each figure as PNG, with its numbers as CSV beside it.

    Returns:
        The files written.
    """
    from rbn_fairseq.report.tables import tid_csv, valid_csv

    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "index.html": render(title, runs),
        "valid.csv": valid_csv(runs),
        "tid.csv": tid_csv(runs),
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    names = ["valid_loss", "tid_mean", "tid_variance"]
    draw(names, runs).savefig(directory / "curves.png", dpi=110)
    return [directory / name for name in (*texts, "curves.png")]
