"""What figures of curves are made of: panels, and the curves in them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pandas as pd

from rbn_fairseq.report.figures.style import THEMED


@dataclass(frozen=True, eq=False)
class Curve:
    """One series: ``points`` has a row a point, with ``run``, ``x``, ``value`` and the identity.

    There may be columns ``difference`` (of the value to layer norm's), ``update`` and ``minutes``
    besides. ``many`` where the norm has many settings.
    """

    points: pd.DataFrame
    colour: str
    dash: Any
    label: str
    many: bool = False

    @property
    def mean(self) -> pd.Series:
        """Average over seeds where all of them have a point, by x."""
        by_x = self.points.groupby("x")["value"]
        mean = by_x.agg(lambda values: values.mean(skipna=False))
        return mean[by_x.size() == self.points["run"].nunique()]

    def data(self) -> dict[str, Any]:
        """Return what the page's script draws, as containers for JSON."""
        runs = [
            {"run": run}
            | {
                name: _for_json(points[name], "NaN" if name == "value" else None)
                for name in ("x", "value", "difference", "update", "minutes")
                if name in points and (name == "value" or points[name].notna().any())
            }
            for run, points in self.points.groupby("run", sort=False)
        ]
        dash = [] if self.dash == "-" else list(self.dash[1])
        name = self.points["label"].iloc[0] if self.many else self.label
        return {
            "label": self.label, "name": name, "dash": dash, "runs": runs,
            "many": self.many,
            "colour": THEMED.get(self.colour.lower(), self.colour),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it.
        quantity: what CSV calls the values.
        x, y: labels of the axes, with units.
        curves: what is drawn.
        log: whether the values' axis is logarithmic, where they are positive and span more than a
            factor of ten.
        zero: whether it begins at 0.
        references: the paper's values, each with its name.
        line: where a black line is drawn across, such as at 0.
    """

    title: str
    quantity: str
    x: str
    y: str
    curves: Sequence[Curve]
    log: bool = False
    zero: bool = False
    references: tuple[tuple[float, str], ...] = ()
    line: Optional[float] = None

    @property
    def values(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """All values of its curves."""
        every = [curve.points["value"].to_numpy(dtype=float) for curve in self.curves]
        return np.concatenate(every) if every else np.array([])

    @property
    def is_log(self) -> bool:
        """Whether the values' axis is logarithmic."""
        finite = self.values[np.isfinite(self.values)]
        return bool(self.log and finite.size and 0 < 10 * finite.min() < finite.max())

    @property
    def linear_to(self) -> Optional[float]:
        """Up to where the values' axis is linear around 0, a power of ten; beyond, logarithmic.

        ``None`` (all of it linear) unless its line is at 0 and a value far away would press most
        others onto it.
        """
        sizes = np.abs(self.values[np.isfinite(self.values)])
        middle = np.median(sizes) if self.line == 0 and sizes.size else 0
        far = 0 < 20 * middle < sizes.max()
        return float(10 ** np.ceil(np.log10(middle))) if far else None

    @property
    def unit(self) -> str:
        """Label of the values' axis."""
        beyond = self.linear_to
        return self.y if beyond is None else f"{self.y},\nlogarithmic beyond ±{beyond:g}"

    def data(self) -> dict[str, Any]:
        """Return what the page's script draws, as containers for JSON."""
        return {
            "title": self.title, "x": self.x, "y": self.unit, "log": self.is_log, "zero": self.zero,
            "linear_to": self.linear_to, "line": self.line, "references": self.references,
            "curves": [curve.data() for curve in self.curves],
        }  # fmt: skip


def _for_json(values: Iterable[float], not_a_number: Optional[str]) -> list[Any]:
    """Round to six digits; what is not finite becomes a text."""
    return [
        float(f"{value:.6g}") if math.isfinite(value)
        else not_a_number if math.isnan(value) else "∞" if value > 0 else "-∞"
        for value in values
    ]  # fmt: skip
