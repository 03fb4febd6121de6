"""Writes a report: the page, and each figure and table as files."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from rbn_fairseq.report.blocks import Figure, Section, Table
from rbn_fairseq.report.page import GENERATOR, Drawing, render, to_svg
from rbn_fairseq.writing import write_whole

_DPI = 150  # of the PNG files
_PAGE = "index.html"
_SYMBOLS = {
    "±": r"$\pm$", "λ": r"$\lambda$", "ν": r"$\nu$", "∞": r"$\infty$",
    "<": r"\textless{}", "|": r"\textbar{}", ">": r"\textgreater{}",
}  # fmt: skip


def to_markdown(table: Table) -> str:
    """Return the table between its title and its notes."""
    texts = table.texts().replace(r"([|\\*_<`])", r"\\\1", regex=True)
    first, *others = table.columns
    sides = ["left", *("right" if table.is_number(column) else "left" for column in others)]
    drawn = texts.to_markdown(index=False, tablefmt="pipe", colalign=sides, disable_numparse=True)
    return "\n\n".join([f"**{table.title}**", drawn, *table.notes]) + "\n"


def to_latex(table: Table) -> str:
    """Return a ``table`` environment; it needs booktabs."""
    style = table.texts().style.hide(axis="index").format(escape="latex")
    style = style.format_index(escape="latex", axis=1)
    latex = style.to_latex(
        column_format="".join("r" if table.is_number(name) else "l" for name in table.columns),
        position_float="centering",
        hrules=True,
        caption=re.sub(r"([%&_#$])", r"\\\1", table.title),
        label=f"tab:{table.name}",
    )
    for symbol, command in _SYMBOLS.items():
        latex = latex.replace(symbol, command)
    latex = re.sub(r"-(?=-)", "-{}", re.sub(r"(?<=& )-(?=\d)", "$-$", latex))
    return f"% Needs \\usepackage{{booktabs}}\n{latex}"


def check_directory(directory: Path, overwrite: bool) -> None:
    """Refuse, before any work, to write over what no report made (``ValueError``)."""
    if directory.is_file():
        raise ValueError(f"--output `{directory}` is a file. Name a directory.")
    there = [name for name in (_PAGE, "figures", "tables") if (directory / name).exists()]
    if there and not overwrite and _files_of(directory / _PAGE) is None:
        raise ValueError(
            f"--output `{directory}` has `{there[0]}`, which no report made. Name another "
            "directory, or give --overwrite to replace its files."
        )


def write_report(
    directory: Path, title: str, sections: Sequence[Section], about: Sequence[tuple[str, str]] = ()
) -> list[Path]:
    """Write the page and beside it each figure as SVG, PNG and CSV, each table as CSV and more.

    An older report in the directory is replaced file by file. Those of its files that the new one
    does not have are removed: the files in ``figures`` and ``tables`` that its page links to. The
    same sections give the same bytes.

    Args:
        directory: made if need be; ``index.html``, ``figures/NAME.{svg,png,csv}`` and
            ``tables/NAME.{csv,md,tex}`` go there.
        title: the page's heading.
        sections: what the page shows; names of figures and of tables are unique.
        about: what was run on what, as pairs of a name and a text.

    Returns:
        The files written, the page first.
    """
    drawn: dict[str, Drawing] = {}
    files: dict[str, str | bytes] = {}
    for block in (block for section in sections for block in section.blocks):
        if isinstance(block, Figure):
            canvas, place = block.draw(), f"figures/{block.name}"
            drawn[block.name] = to_svg(canvas)
            canvas.set_layout_engine("none")  # it is laid out; again would take most of the time
            picture = io.BytesIO()
            canvas.savefig(picture, format="png", dpi=_DPI)
            files[f"{place}.svg"] = drawn[block.name].svg
            files[f"{place}.png"] = picture.getvalue()
            files[f"{place}.csv"] = block.numbers.to_csv(index=False)
        else:
            files[f"tables/{block.name}.csv"] = block.numbers.to_csv(index=False)
            files[f"tables/{block.name}.md"] = to_markdown(block)
            files[f"tables/{block.name}.tex"] = to_latex(block)
    page = render(title, sections, about, drawn)
    # In this order a page names all files that are there, wherever it is interrupted.
    for name in (_files_of(directory / _PAGE) or set()) - set(files):
        (directory / name).unlink(missing_ok=True)
    write_whole(directory / _PAGE, page)
    for name, content in files.items():
        write_whole(directory / name, content)
    return [directory / name for name in (_PAGE, *files)]


def _files_of(page: Path) -> Optional[set[str]]:
    """Return what a report's page links to; ``None`` where it is not a page of ours."""
    text = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
    if f'content="{GENERATOR}"' not in text:
        return None
    linked = r'href="(figures/[\w.-]+\.(?:svg|png|csv)|tables/[\w.-]+\.(?:csv|md|tex))"'
    return set(re.findall(linked, text))
