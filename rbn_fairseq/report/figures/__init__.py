"""Figures of runs: the same colour for a norm in every one, one idea a file."""

from rbn_fairseq.report.figures.panels import PANELS, colours, draw, to_svg

__all__ = ["PANELS", "colours", "draw", "to_svg"]
