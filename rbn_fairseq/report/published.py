"""The paper's own numbers, from ``published.json`` beside this file.

Source: Wang, Wu and Huang, "Understanding the Failure of Batch Normalization for Transformers in
NLP" (NeurIPS 2022); means of at least 3 seeds, without error bars.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Optional

__all__ = ["Published", "published"]


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

    def gap(self, placement: str, norm: str, dataset: str) -> Optional[float]:
        """Return how much worse than layer norm it is, in its metric's unit; positive = worse."""
        pair = [self.performance(placement, name, dataset) for name in (norm, "LN")]
        if pair[0] is None or pair[1] is None:
            return None
        worse = pair[0] - pair[1]
        return worse if self.metrics[self.datasets.index(dataset)] == "PPL" else -worse


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
