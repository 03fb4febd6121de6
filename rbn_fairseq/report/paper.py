"""The paper's own numbers, from ``published.json`` beside this file, and its two benchmarks.

Source: Wang, Wu and Huang, "Understanding the Failure of Batch Normalization for Transformers in
NLP" (NeurIPS 2022); means of at least 3 seeds, without error bars.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Optional

import pandas as pd

__all__ = ["BENCHMARKS", "PLACED", "Benchmark", "Published", "published"]

#: The paper's placements.
PLACED = ("Post-Norm", "Pre-Norm")


@dataclass(frozen=True)
class Published:
    """What the paper reports.

    Attributes:
        datasets: names, in the order of its tables.
        metrics: what each is measured by; of ``PPL``, perplexity, less is better.
        average_tid: mean and variance TID in per cent, averaged over layers, at the end of
            training (section 3.2), by model.
        deviation: deviation of batch from population mean and variance in per cent (Figure 2).
    """

    datasets: tuple[str, ...]
    metrics: tuple[str, ...]
    average_tid: Mapping[str, tuple[float, float]]
    deviation: Mapping[str, tuple[float, float]]
    _performance: Mapping[str, Any]
    _last_tid: Mapping[str, Any]

    def performance(self, placement: str, norm: str, dataset: str) -> Optional[float]:
        """Return Tables 1 to 3's number; ``None`` if there is none."""
        row = self._performance.get(placement, {}).get(norm)
        return float(row[self.datasets.index(dataset)]) if row else None

    def last_tid(self, placement: str, kind: str, norm: str, dataset: str) -> Optional[float]:
        """Return Tables 1 and 4's TID of the last layer in per cent; ``kind``: mean, variance."""
        row = self._last_tid.get(placement, {}).get(kind, {}).get(norm)
        return float(row[self.datasets.index(dataset)]) if row else None

    def settings(self) -> pd.DataFrame:
        """Return the paper's 20 settings of BN, Post- and Pre-Norm on ten data sets.

        Columns ``placement``, ``dataset``, ``metric``, ``tid`` (total, in per cent) and ``gap`` to
        layer norm, positive = worse, in the metric's unit.
        """
        rows = []
        for placement in PLACED:
            for dataset, metric in zip(self.datasets, self.metrics, strict=True):
                batch, layer = (
                    self._performance[placement][norm][self.datasets.index(dataset)]
                    for norm in ("BN", "LN")
                )
                tid = sum(
                    self._last_tid[placement][kind]["BN"][self.datasets.index(dataset)]
                    for kind in ("mean", "variance")
                )
                gap = batch - layer if metric == "PPL" else layer - batch
                rows.append((placement, dataset, metric, tid, gap))
        return pd.DataFrame(rows, columns=["placement", "dataset", "metric", "tid", "gap"])


@cache
def published() -> Published:
    """Read the file, once."""
    text = files("rbn_fairseq.report").joinpath("published.json").read_text(encoding="utf-8")
    content = json.loads(text)
    pairs = {
        name: {model: tuple(numbers) for model, numbers in content[name].items()}
        for name in ("average_tid", "deviation")
    }
    return Published(
        tuple(content["datasets"]),
        tuple(content["metrics"]),
        pairs["average_tid"],
        pairs["deviation"],
        content["performance"],
        content["last_layer_tid"],
    )


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
