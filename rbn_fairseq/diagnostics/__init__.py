"""Measurements on models with batch norms and their kin: pure torch, usable without fairseq."""

from rbn_fairseq.diagnostics.batch_norms import batch_norms, population_norms
from rbn_fairseq.diagnostics.collect import LayerMoments, collect_moments, measuring
from rbn_fairseq.diagnostics.conditional import conditional_tid
from rbn_fairseq.diagnostics.conditioning import Conditioning, conditioning
from rbn_fairseq.diagnostics.decomposition import Sources, decompose, squared_share
from rbn_fairseq.diagnostics.deviation import Deviation, deviation
from rbn_fairseq.diagnostics.drift import Distance, distance, near_eps, spread
from rbn_fairseq.diagnostics.permuted import collect_permuted_moments, independent_tid
from rbn_fairseq.diagnostics.population import ESTIMATES, POPULATIONS, population
from rbn_fairseq.diagnostics.recalibrate import recalibrate, set_population
from rbn_fairseq.diagnostics.tid import TID, average_tid, measure_tid, tid, tid_error

__all__ = [
    "ESTIMATES",
    "POPULATIONS",
    "TID",
    "Conditioning",
    "Deviation",
    "Distance",
    "LayerMoments",
    "Sources",
    "average_tid",
    "batch_norms",
    "collect_moments",
    "collect_permuted_moments",
    "conditional_tid",
    "conditioning",
    "decompose",
    "deviation",
    "distance",
    "independent_tid",
    "measure_tid",
    "measuring",
    "near_eps",
    "population",
    "population_norms",
    "recalibrate",
    "set_population",
    "spread",
    "squared_share",
    "tid",
    "tid_error",
]
