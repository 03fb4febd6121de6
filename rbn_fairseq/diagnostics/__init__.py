"""Measurements on models with batch norms: pure torch, usable without fairseq."""

from rbn_fairseq.diagnostics.collect import LayerMoments, batch_norms, collect_moments
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
    "recalibrate",
    "tid",
]
