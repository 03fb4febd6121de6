"""A matplotlib figure as an ``<svg>`` element that can stand beside others on a page."""

import io
import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

__all__ = ["to_svg"]

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"


def to_svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an ``<svg>`` element.

    Its ids are ``name-1``, ``name-2`` and so on. matplotlib's own are the same in every figure that
    has the same letters, and some of them differ from one run of the program to the next.

    Args:
        figure: what is drawn.
        name: prefix of the ids, another one for each figure of a page.
        title: what the figure is called where it cannot be seen.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(text.getvalue())
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    _rename(root, name)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _rename(root: ElementTree.Element, name: str) -> None:
    known = [old for element in root.iter() if (old := element.get("id")) is not None]
    ids = {old: f"{name}-{number}" for number, old in enumerate(known, 1)}
    for element in root.iter():
        for key, value in element.items():
            if key == "id":
                element.set(key, ids[value])
            elif key == f"{{{_XLINK}}}href" and value.startswith("#"):
                element.set(key, "#" + ids[value[1:]])
            elif "url(#" in value:
                element.set(key, re.sub(r"(?<=url\(#)[^)]*", lambda it: ids[it[0]], value))
