"""Renders sections as one self-contained HTML page."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Optional

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure, Section, Sentences, Table
from rbn_fairseq.report.figures.style import STYLE

__all__ = ["GENERATOR", "Drawing", "render", "to_svg"]

#: By this a page of ours is known.
GENERATOR = "rbn report"
_CONTENTS = 3  # a page of more sections has a list of contents


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG, and its own width in CSS pixels, of which an inch has 96."""

    svg: bytes
    width: int

    @property
    def base64(self) -> str:
        """The SVG as the source of an image has it."""
        return base64.b64encode(self.svg).decode()


def to_svg(canvas: Canvas) -> Drawing:
    """Draw a figure."""
    file = io.BytesIO()
    with rc_context(STYLE):  # for the same figure the same bytes
        canvas.savefig(file, format="svg", metadata={"Date": None})
    return Drawing(file.getvalue(), round(96 * canvas.get_figwidth()))


def _inline(text: str) -> Markup:
    """Mark what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # the last has no partner
        parts[-2:] = ["`".join(parts[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def render(
    title: str,
    sections: Sequence[Section],
    about: Sequence[tuple[str, str]] = (),
    *,
    drawn: Optional[Mapping[str, Drawing]] = None,
) -> str:
    """Return the page.

    Args:
        title: its heading.
        sections: what it shows.
        about: what was run on what, as pairs of a name and a text.
        drawn: the figures by name, where files stand beside the page: it links to them.
    """
    blocks = [block for section in sections for block in section.blocks]
    figures = [block for block in blocks if isinstance(block, Figure)]
    environment = Environment(
        loader=PackageLoader("rbn_fairseq.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = _inline
    environment.tests |= {
        kind.__name__.lower(): (lambda block, kind=kind: isinstance(block, kind))
        for kind in (Figure, Sentences, Table)
    }
    return environment.get_template("page.html").render(
        title=title,
        sections=[(section, _rows(section)) for section in sections],
        about=about,
        contents=len(sections) > _CONTENTS,
        drawings=drawn or {figure.name: to_svg(figure.draw()) for figure in figures},
        files=drawn is not None,
        texts=lambda table: [list(row.items()) for row in table.texts().to_dict("records")],
        generator=GENERATOR,
    )


def _rows(section: Section) -> list[list[Table | Figure | Sentences]]:
    """Put figures that follow each other side by side."""
    grouped = groupby(
        enumerate(section.blocks), lambda it: -1 if isinstance(it[1], Figure) else it[0]
    )
    return [[block for _, block in group] for _, group in grouped]
