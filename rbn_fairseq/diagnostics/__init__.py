"""Measurements on models with batch norms and their kin: pure torch, usable without fairseq."""

from rbn_fairseq.diagnostics.collect import (
    LayerMoments,
    batch_norms,
    collect_moments,
    population_norms,
)
from rbn_fairseq.diagnostics.recalibrate import recalibrate
from rbn_fairseq.diagnostics.tid import POPULATIONS, TID, average_tid, population, tid

__all__ = [
    "POPULATIONS",
    "TID",
    "LayerMoments",
    "average_tid",
    "batch_norms",
    "collect_moments",
    "population",
    "population_norms",
    "recalibrate",
    "tid",
]
