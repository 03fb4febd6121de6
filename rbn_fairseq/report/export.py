"""A report as files: the page, its figures, its tables, their numbers."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rbn_fairseq.files import write_whole
from rbn_fairseq.report.blocks import Cell, Figure, Section, Table
from rbn_fairseq.report.latex import to_latex
from rbn_fairseq.report.layout import check_table, has_paper
from rbn_fairseq.report.markdown import to_markdown
from rbn_fairseq.report.page import GENERATOR, check_names, render
from rbn_fairseq.report.spreadsheet import write_csv
from rbn_fairseq.report.svg import to_svg

__all__ = ["check_directory", "to_csv", "write_report"]

_DPI = 150  # of the PNG files
_PAGE = "index.html"


def to_csv(table: Table) -> str:
    """Return the table's values in full precision under the names of its columns.

    A column whose cells hold several values (:attr:`Cell.csv`) becomes several. Where some are the
    paper's, a last column ``from the paper`` names the columns that hold them.
    """

    def values(cell: Cell, names: Sequence[str]) -> list[Any]:
        own = cell.csv or ((names[0], cell.text if cell.value is None else cell.value),)
        return [dict(own).get(name, "") for name in names]

    cells = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.columns)
    parts = [
        list(dict.fromkeys(name for cell in column for name, _ in cell.csv)) or [""]
        for column in cells
    ]
    header = [
        f"{column}, {name}" if name else column
        for column, names in zip(table.columns, parts, strict=True)
        for name in names
    ]
    paper = has_paper(table)
    rows = []
    for row in table.rows:
        line = [it for pair in zip(row, parts, strict=True) for it in values(*pair)]
        named = zip(table.columns, row, strict=True)
        line += ["; ".join(column for column, cell in named if cell.paper)] * paper
        rows.append(line)
    return write_csv([*header, *["from the paper"] * paper], rows)


def check_directory(option: str, directory: Path, overwrite: bool) -> None:
    """Refuse, before any work, to replace a page that is not a report's.

    Args:
        option: that names the directory, for messages.
        directory: for the report.
        overwrite: whether the user has said that another page may go.

    Raises:
        ValueError: naming the page and the way out.
    """
    if directory.is_file():
        raise ValueError(f"{option} `{directory}` is a file. Name a directory.")
    page = directory / _PAGE
    if page.exists() and not overwrite and not _is_ours(page):
        raise ValueError(
            f"{option} `{directory}` has another page, `{_PAGE}`. Name another directory, or give "
            "--overwrite to replace it."
        )


def write_report(
    directory: Path,
    title: str,
    sections: Sequence[Section],
    about: Sequence[tuple[str, str]] = (),
    overwrite: bool = False,
) -> list[Path]:
    """Write the page and beside it each figure as SVG, PNG and CSV, each table as CSV and more.

    An older report in the directory is replaced file by file. Those of its files that the new one
    does not have are removed: the files in ``figures`` and ``tables`` that its page links to. The
    same sections give the same bytes.

    Args:
        directory: made if need be; ``index.html``, ``figures/NAME.{svg,png,csv}`` and
            ``tables/NAME.{csv,md,tex}`` go there.
        title: the page's heading.
        sections: what the page shows.
        about: what was run on what, as pairs of a name and a text.
        overwrite: whether files that no report made may be replaced.

    Returns:
        The files written, the page first.

    Raises:
        ValueError: if two blocks have the same name, a table's rows do not fit its columns, or a
            file that no report made would be lost.
    """
    check_names(sections)
    blocks = [block for section in sections for block in section.blocks]
    drawn: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for block in blocks:
        if isinstance(block, Figure):
            canvas, place = block.draw(), f"figures/{block.name}"
            drawn[block.name] = to_svg(canvas, f"svg-{block.name}", block.title)
            canvas.set_layout_engine(
                "none"
            )  # it is laid out; to do it again takes most of the time
            picture = io.BytesIO()
            canvas.savefig(picture, format="png", dpi=_DPI)
            svg = f'<?xml version="1.0" encoding="utf-8"?>\n{drawn[block.name]}\n'
            files[f"{place}.svg"] = svg.encode()
            files[f"{place}.png"] = picture.getvalue()
            files[f"{place}.csv"] = write_csv(block.header, block.rows).encode()
        elif isinstance(block, Table):
            check_table(block)
            for suffix, form in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
                files[f"tables/{block.name}.{suffix}"] = form(block).encode()
    page = render(title, sections, about, drawn=drawn)
    check_directory("--output", directory, overwrite)
    older = _files_of(directory / _PAGE)
    foreign = [name for name in set(files) - older if (directory / name).exists()]
    if foreign and not overwrite:
        raise ValueError(
            f"--output `{directory}` has `{min(foreign)}`, which no page of a report there names. "
            "Name another directory, or give --overwrite to replace such files."
        )
    # In this order a page names all files that are there, wherever it is interrupted.
    for name in older - set(files):
        (directory / name).unlink(missing_ok=True)
    write_whole(directory / _PAGE, page)
    for name, content in files.items():
        write_whole(directory / name, content)
    return [directory / name for name in (_PAGE, *files)]


def _is_ours(page: Path) -> bool:
    """Tell whether a report's page is there."""
    there = page.is_file() and page.read_text(encoding="utf-8", errors="replace")
    return bool(there) and f'content="{GENERATOR}"' in there


def _files_of(page: Path) -> set[str]:
    """Return what a report's page links to; nothing where it is not a page of ours."""
    if not _is_ours(page):
        return set()
    linked = r'href="(figures/[\w.-]+\.(?:svg|png|csv)|tables/[\w.-]+\.(?:csv|md|tex))"'
    return set(re.findall(linked, page.read_text(encoding="utf-8", errors="replace")))
