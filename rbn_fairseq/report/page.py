"""One self-contained HTML page about some runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rbn_fairseq.report.figures import PANELS, colours, draw, to_svg
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.tables import scores_csv, tid_csv, valid_csv

__all__ = ["render", "write_report"]


def _bleu(run: Run) -> Optional[dict[str, Any]]:
    return run.scores.get("sacrebleu")


def _drawn(runs: Sequence[Run]) -> list[str]:
    return [name for name in PANELS if name == "valid_loss" or any(run.tid for run in runs)]


def render(
    title: str,
    runs: Sequence[Run],
    about: Sequence[tuple[str, str]] = (),
    copying: Optional[Mapping[str, Any]] = None,
    translations: Sequence[Mapping[str, str]] = (),
    scored: str = "",
) -> str:
    """Return the page.

    Args:
        title: its heading.
        runs: what the table and the figures show.
        about: what was run on what, as pairs of a name and a text.
        copying: score of copying the source, for the table's first row.
        translations: sentences with the keys ``source``, ``reference`` and the runs' names.
        scored: a sentence about which weights were scored, and how.
    """
    loader = PackageLoader("rbn_fairseq.report", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        title=title,
        runs=runs,
        about=about,
        copying=copying,
        translations=translations,
        scored=scored,
        signatures=sorted({score["signature"] for score in map(_bleu, runs) if score}),
        bleu=_bleu,
        colours=colours([run.name for run in runs]),
        figures={name: Markup(to_svg(draw([name], runs))) for name in _drawn(runs)},
    )


def write_report(directory: Path, title: str, runs: Sequence[Run]) -> list[Path]:
    """Write ``index.html``, its curves as ``curves.png``, and the numbers as CSV.

    Returns:
        The files written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"index.html": render(title, runs), "valid.csv": valid_csv(runs)}
    if any(run.tid for run in runs):
        texts["tid.csv"] = tid_csv(runs)
    if any(run.scores for run in runs):
        texts["scores.csv"] = scores_csv(runs)
    for older in {"tid.csv", "scores.csv"} - set(texts):
        (directory / older).unlink(missing_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    curves = [name for name in _drawn(runs) if not name.endswith("by_layer")]
    draw(curves, runs).savefig(directory / "curves.png", dpi=110)
    return [directory / name for name in (*texts, "curves.png")]
