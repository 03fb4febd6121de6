"""Making and drawing figures so that one that fails does not end the report."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.missing import Drawn
from rbn_fairseq.report.figures.style import sheet

__all__ = ["Failed", "made"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failed:
    """A figure that could not be made: its title and the error."""

    title: str
    problem: str


def _safely(draw: Callable[[], Canvas], title: str) -> Callable[[], Canvas]:
    """Draw words instead where drawing fails."""

    def drawn() -> Canvas:
        try:
            return draw()
        except Exception as error:  # whatever it is: the report's other figures are worth having
            logger.warning("%s is not drawn", title, exc_info=True)
            with sheet(1, 1) as (canvas, ((axes,),)):
                axes.axis("off")
                words = f"This figure could not be drawn:\n{error!r}"
                axes.text(0.5, 0.5, words, ha="center", va="center", wrap=True, parse_math=False)
                return canvas

    return drawn


def made(make: Callable[..., Drawn | list[Drawn]], *args: Any) -> list[Drawn | Failed]:
    """Make a figure or several, which say so in their place where drawing fails."""
    try:
        found = make(*args)
    except Exception as error:  # for the same reason
        title = (make.__doc__ or make.__name__).partition("\n")[0]
        logger.warning("%s is not made", title, exc_info=True)
        return [Failed(title, f"It could not be made: {error!r}.")]
    return [
        replace(it, draw=_safely(it.draw, it.title)) if isinstance(it, Figure) else it
        for it in (found if isinstance(found, list) else [found])
    ]
