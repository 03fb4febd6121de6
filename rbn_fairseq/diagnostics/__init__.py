"""Measurements on models with batch norms and their kin: pure torch, usable without fairseq."""

from rbn_fairseq.diagnostics.batch_norms import batch_norms, population_norms
from rbn_fairseq.diagnostics.collect import LayerMoments, collect_moments, measuring
from rbn_fairseq.diagnostics.deviation import Deviation, deviation
from rbn_fairseq.diagnostics.drift import Distance, distance, near_eps, spread
from rbn_fairseq.diagnostics.population import ESTIMATES, POPULATIONS, population
from rbn_fairseq.diagnostics.recalibrate import recalibrate
from rbn_fairseq.diagnostics.tid import TID, average_tid, measure_tid, tid, tid_error

__all__ = [
    "ESTIMATES",
    "POPULATIONS",
    "TID",
    "Deviation",
    "Distance",
    "LayerMoments",
    "average_tid",
    "batch_norms",
    "collect_moments",
    "deviation",
    "distance",
    "measure_tid",
    "measuring",
    "near_eps",
    "population",
    "population_norms",
    "recalibrate",
    "spread",
    "tid",
    "tid_error",
]
