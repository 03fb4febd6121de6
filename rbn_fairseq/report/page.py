"""Renders sections as one HTML page that needs no network; its links lead to files beside it.

Figures of curves are drawn twice: as SVG for print and for browsers without scripts, and by
``page.js`` with uPlot (``vendor/``), so that values can be read off, settings hidden and axes
chosen.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure, Section
from rbn_fairseq.report.figures.style import STYLE, THEMED

#: By this a page of ours is known.
GENERATOR = "rbn report"
_PLOTS = "vendor/uPlot-1.6.32.min.js"


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG, and its own width in CSS pixels, of which an inch has 96."""

    svg: bytes
    width: int

    def inline(self, name: str) -> Markup:
        """Return the SVG as a part of the page: with its colours, and names that no other has."""

        def adapt(tag: re.Match[str]) -> str:
            text = re.sub(r'(\sid="|href="#|url\(#)', rf"\1{name}-", tag[0])
            text = re.sub(r'^(<svg.*?) width="\S*" height="\S*"', r"\1", text)
            return re.sub(r"#[0-9a-f]{6}(?=[;\"])", lambda it: THEMED.get(it[0], it[0]), text)

        svg = self.svg[self.svg.index(b"<svg") :].decode()
        svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
        return Markup(re.sub(r"<\w[^>]*>", adapt, svg))


def to_svg(canvas: Canvas) -> Drawing:
    """Draw a figure."""
    file = io.BytesIO()
    with rc_context(STYLE):  # for the same figure the same bytes
        canvas.savefig(file, format="svg", metadata={"Date": None})
    return Drawing(file.getvalue(), round(96 * canvas.get_figwidth()))


def _inline(text: str) -> Markup:
    """Mark what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def render(
    title: str,
    sections: Sequence[Section],
    about: Sequence[tuple[str, str]],
    drawn: Mapping[str, Drawing],
) -> str:
    """Return the page, which links to the files of figures and tables beside it.

    ``drawn`` are the figures by name; the rest is as for ``write_report``.
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
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters["inline"] = _inline
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    shown: set[str] = set()

    def fresh(notes: Iterable[str]) -> list[str]:
        """Return the notes that do not stand on the page yet."""
        new = [note for note in notes if note not in shown]
        shown.update(new)
        return new

    return environment.get_template("page.html").render(
        title=title,
        sections=sections,
        about=about,
        drawings=drawn,
        fresh=fresh,
        themed=lambda colour: THEMED.get(colour.lower(), colour),
        panels={it.name: [panel.data() for panel in it.panels] for it in figures if it.panels},
        plots=Markup(files("rbn_fairseq.report").joinpath(_PLOTS).read_text(encoding="utf-8")),
        generator=GENERATOR,
    )
