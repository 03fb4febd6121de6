"""The paper's own numbers, from ``published.json`` beside this file, and its two benchmarks.

Source: Wang, Wu and Huang, "Understanding the Failure of Batch Normalization for Transformers in
NLP" (NeurIPS 2022); means of at least 3 seeds, without error bars.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Optional

import pandas as pd

__all__ = ["BENCHMARKS", "PLACED", "Benchmark", "published", "published_gaps", "published_results"]

#: The paper's placements.
PLACED = ("Post-Norm", "Pre-Norm")


@cache
def published() -> dict[str, Any]:
    """Read the file.

    ``average_tid``, by model, is mean and variance TID in per cent, averaged over layers, at the
    end of training (section 3.2); ``deviation`` is that of batch from population mean and variance
    in per cent (Figure 2).
    """
    text = files("rbn_fairseq.report").joinpath("published.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@cache
def published_results() -> pd.DataFrame:
    """Return Tables 1 to 4 by placement, norm and data set.

    Columns ``performance`` in the data set's metric, ``mean_tid`` and ``var_tid`` of the last
    layer in per cent; NaN where the paper has no number.
    """
    content = published()
    columns = {}
    for name in ("performance", "mean_tid", "var_tid"):
        numbers = {
            (placement, norm): values
            for placement, norms in content[name].items()
            for norm, values in norms.items()
        }
        table = pd.DataFrame(numbers, content["datasets"], dtype=float)
        columns[name] = table.rename_axis(index="dataset", columns=["placement", "norm"]).unstack()
    return pd.DataFrame(columns).reindex(columns["performance"].index)


def published_gaps() -> pd.DataFrame:
    """Return the paper's 20 settings of BN, Post- and Pre-Norm on ten data sets.

    Columns ``placement``, ``dataset``, ``metric``, ``tid`` (total, in per cent) and ``gap`` to
    layer norm, positive = worse, in the metric's unit.
    """
    batch, layer = (published_results().xs(norm, level="norm") for norm in ("BN", "LN"))
    gaps = (layer["performance"] - batch["performance"]).rename("gap").reset_index()
    metrics = dict(zip(published()["datasets"], published()["metrics"], strict=True))
    metric = gaps["dataset"].map(metrics)
    gap = gaps["gap"].where(metric != "PPL", -gaps["gap"])  # of perplexity less is better
    tid = (batch["mean_tid"] + batch["var_tid"]).to_numpy()
    return gaps.assign(metric=metric, tid=tid, gap=gap)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the paper.

    Attributes:
        corpus: its name in ``about.json`` beside the data.
        dataset: its name in the paper's tables.
        kinds: kinds of BLEU, as ``rbn score`` calls them; the paper's comes first.
        heading: what a table calls the paper's kind.
        sizes: of the paper's model: layers, width, feed-forward width and heads of both sides.
        epochs: those averaged; ``None`` = the paper does not tell.
        updates: that the training must have had; 0 = the epochs tell.
        reading: what to say where its numbers are shown.
    """

    corpus: str
    dataset: str
    kinds: tuple[str, ...]
    heading: str
    sizes: tuple[int, int, int, int]
    epochs: Optional[tuple[int, ...]]
    updates: int
    reading: str = ""


#: By the name that the scripts have.
BENCHMARKS = {
    "iwslt14": Benchmark(
        corpus="IWSLT14 De-En",
        dataset="IWSLT14",
        kinds=("tokenised", "sacrebleu"),
        heading="tokenised BLEU4",
        sizes=(6, 512, 1024, 4),
        epochs=tuple(range(55, 61)),
        updates=0,
    ),
    "wmt16": Benchmark(
        corpus="WMT16 En-De",
        dataset="WMT16",
        kinds=("compound_split", "tokenised", "sacrebleu"),
        heading="compound-split BLEU4",
        sizes=(6, 512, 2048, 8),
        epochs=None,
        updates=100_000,
        reading="paper: for WMT16 its text tells neither model nor recipe nor the epochs averaged; "
        "the base model and the rest are this project's reading",
    ),
}
