"""Sections as one HTML page that needs nothing else: no network, no other file."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Optional

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rbn_fairseq.report.blocks import Cell, Figure, Section, Sentences, Table
from rbn_fairseq.report.layout import (
    PAPER,
    check_table,
    has_paper,
    is_long,
    letters,
    right_aligned,
    split_code,
)
from rbn_fairseq.report.svg import to_svg

__all__ = ["GENERATOR", "check_names", "render"]

#: By this a page of ours is known.
GENERATOR = "rbn report"
_CONTENTS = 3  # a page of more sections has a list of contents
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_names(sections: Sequence[Section]) -> None:
    """Refuse blocks that would share files or ids.

    Raises:
        ValueError: if two figures or two tables have the same name, or a name is no file's name.
    """
    for kind in (Figure, Table):
        blocks = [it for section in sections for it in section.blocks if isinstance(it, kind)]
        seen: dict[str, str] = {}
        for block in blocks:
            if not _NAME.fullmatch(block.name):
                raise ValueError(
                    f"{kind.__name__} `{block.name}`: a name has letters, digits, `_`, `.` and "
                    "`-`, because files are called by it. Choose another one."
                )
            if block.name.lower() in seen:
                raise ValueError(
                    f"{kind.__name__} `{block.name}`: “{seen[block.name.lower()]}” and "
                    f"“{block.title}” have the same name, by which their files are called. "
                    "Rename one of them."
                )
            seen[block.name.lower()] = block.title


def _inline(text: str) -> Markup:
    """Mark what stands between backticks as code, in which no line ends within an option."""
    return Markup("").join(_code(part) if code else escape(part) for part, code in split_code(text))


def _code(text: str) -> Markup:
    whole = re.sub(r"(?<!\S)--[\w-]+", r'<span class="option">\g<0></span>', str(escape(text)))
    return Markup(f"<code>{whole}</code>")


def _paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield whether it is a list, and its entries or the one text of a paragraph."""
    for part in re.split(r"\n\s*\n", text.strip()):
        for listed, group in groupby(part.splitlines(), lambda line: line.startswith("- ")):
            lines = list(group)
            yield listed, [line[2:] for line in lines] if listed else [" ".join(lines)]


def _sorted_by(cell: Cell) -> Markup:
    """Return the attribute by which the page sorts; empty cells and what is no number have none."""
    if cell.value is not None and not math.isnan(cell.value):
        value = repr(float(cell.value)).replace("inf", "Infinity")  # as JavaScript reads it
        return Markup(' data-value="{}"').format(value)
    return Markup(' data-text="{}"').format(cell.text) if cell.text else Markup("")


def _width(svg: str) -> int:
    """Return a figure's own width in CSS pixels, of which an inch has 96 and 72 points."""
    found = re.search(r'viewBox="\S+ \S+ (\S+) ', svg)
    return round(float(found[1]) * 96 / 72) if found else 0


def render(
    title: str,
    sections: Sequence[Section],
    about: Sequence[tuple[str, str]] = (),
    *,
    drawn: Optional[Mapping[str, str]] = None,
) -> str:
    """Return the page.

    Args:
        title: its heading.
        sections: what it shows.
        about: what was run on what, as pairs of a name and a text.
        drawn: the figures' SVG by name, where files stand beside the page: it links to them.

    Raises:
        ValueError: if two blocks have the same name, or a table's rows do not fit its columns.
    """
    check_names(sections)
    blocks = [block for section in sections for block in section.blocks]
    for table in blocks:
        if isinstance(table, Table):
            check_table(table)
    figures = [block for block in blocks if isinstance(block, Figure)]
    svgs = drawn or {it.name: to_svg(it.draw(), f"svg-{it.name}", it.title) for it in figures}
    loader = PackageLoader("rbn_fairseq.report", "")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": _inline, "paragraphs": _paragraphs, "sorted_by": _sorted_by}
    environment.tests |= {
        kind.__name__.lower(): (lambda block, kind=kind: isinstance(block, kind))
        for kind in (Figure, Sentences, Table)
    }
    return environment.get_template("page.html").render(
        title=title,
        sections=[(section, _rows(section)) for section in sections],
        about=about,
        contents=len(sections) > _CONTENTS,
        svgs={name: Markup(svg) for name, svg in svgs.items()},
        widths={name: _width(svg) for name, svg in svgs.items()},
        files=drawn is not None,
        letters=letters,
        right_aligned=right_aligned,
        has_paper=has_paper,
        is_long=is_long,
        paper=PAPER,
        generator=GENERATOR,
    )


def _rows(section: Section) -> list[list[Table | Figure | Sentences]]:
    """Put figures that follow each other side by side."""
    grouped = groupby(
        enumerate(section.blocks), lambda it: -1 if isinstance(it[1], Figure) else it[0]
    )
    return [[block for _, block in group] for _, group in grouped]
