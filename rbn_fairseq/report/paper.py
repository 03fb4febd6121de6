"""The paper's own numbers, from ``published.csv`` beside this file, which names their source."""

from functools import cache
from importlib.resources import files

import pandas as pd

__all__ = ["PLACED", "published_results"]

#: The paper's placements.
PLACED = ("Post-Norm", "Pre-Norm")


@cache
def published_results() -> pd.DataFrame:
    """Return Tables 1 to 4, by placement, norm and data set.

    Columns ``score`` (BLEU, perplexity, F1 or accuracy), and ``mean_tid`` and ``var_tid`` of the
    last layer in per cent; NaN where the paper has no number.
    """
    with files("rbn_fairseq.report").joinpath("published.csv").open() as file:
        return pd.read_csv(file, comment="#", index_col=["placement", "norm", "dataset"])
