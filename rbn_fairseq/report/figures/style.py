"""What all figures share: colours, fonts, the sheet they are drawn on, the legend below."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

Colours = Mapping[str, str]  # by the label of a setting, and by norm

GREY = "#777777"  # the paper's numbers, and reference lines
#: Colours that the page takes from its style sheet, so that figures follow dark mode. All others
#: are seen on white and on black.
THEMED = {
    "#000000": "var(--ink)", "#ffffff": "var(--back)", "#e5e5e5": "var(--line)",
    GREY: "var(--paper)",
}  # fmt: skip
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "svg.hashsalt": "rbn_fairseq",  # the same figure, the same file
    "svg.fonttype": "none",  # letters are text: to be found, copied and read aloud
}
#: Okabe and Ito's colours, told apart by colour-blind readers too.
_KNOWN = {
    "LN": "#0072B2",
    "BN": "#D55E00",
    "RBN": "#009E73",
    "PN-only": "#CC79A7",
    "PN+LS": "#56B4E9",
    "BRN": "#E69F00",
    "MABN": "#000000",
}
_SPARE = ("#8C6D31", "#7B4FB5", "#9AA300", "#A0A0A0", "#CC79A7", "#56B4E9", "#E69F00")
_SETTINGS = 8  # of one norm, that have a colour each


def _spare(number: int, used: Collection[str]) -> list[str]:
    """Return so many colours that are not used yet."""
    spare = [colour for colour in _SPARE if colour not in used]
    if number > len(spare):
        scale = matplotlib.colormaps["turbo"].resampled(number + 2)
        return [to_hex(scale(place + 1)) for place in range(number)]
    return spare[:number]


def setting_colours(settings: Sequence[tuple[str, str]]) -> Colours:
    """Return a colour for each setting, and for each norm; the paper's norms have the same always.

    The first setting of a norm has the norm's colour, later ones those that no norm here has;
    of a norm with more than a few all have the norm's.

    Args:
        settings: norm and label of each, in the order of tables.
    """
    settings = list(dict.fromkeys(settings))
    norms = [norm for norm, _ in settings]
    colours = {norm: _KNOWN[norm] for norm in norms if norm in _KNOWN}
    others = [norm for norm in dict.fromkeys(norms) if norm not in _KNOWN]
    colours |= zip(others, _spare(len(others), colours.values()), strict=True)
    later = [
        label
        for number, (norm, label) in enumerate(settings)
        if norm in norms[:number] and norms.count(norm) <= _SETTINGS
    ]
    by_label = dict(zip(later, _spare(len(later), colours.values()), strict=True))
    return colours | {label: by_label.get(label, colours[norm]) for norm, label in settings}


@contextmanager
def sheet(
    rows: int, columns: int, width: float = 4.4, height: float = 3.0
) -> Iterator[tuple[Canvas, list[list[Axes]]]]:
    """Give a canvas with axes in rows, each ``width`` by ``height`` inches.

    A dollar sign in a text, such as a run's name, is drawn as it is.
    """
    with matplotlib.rc_context(STYLE):
        size = (max(width * columns, 5.0), height * rows + 0.5)
        canvas = Canvas(figsize=size, layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False)
        yield canvas, [list(row) for row in grid]
    # Ticks of logarithmic axes are formulas; they get their texts later.
    for text in canvas.findobj(Text):
        text.set_parse_math("$" not in text.get_text())


def legend_below(canvas: Canvas, axes: Sequence[Axes]) -> None:
    """Put one legend below all panels, where it covers no curve; each label once."""
    entries: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    characters = 10 + max(map(len, entries))
    canvas.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=max(1, min(len(entries), int(13 * canvas.get_figwidth() / characters))),
        fontsize=9,
        columnspacing=1.2,
        handlelength=3.5,  # two periods of dots and dashes
    )
