"""Measurements on models with batch norms and their kin: pure torch, usable without fairseq."""

from rbn_fairseq.diagnostics.collect import (
    LayerMoments,
    batch_norms,
    collect_moments,
    measuring,
    population_norms,
)
from rbn_fairseq.diagnostics.conditioning import Conditioning, conditioning
from rbn_fairseq.diagnostics.estimates import (
    ESTIMATES,
    POPULATIONS,
    population,
    recalibrate,
    set_population,
)
from rbn_fairseq.diagnostics.tid import (
    TID,
    average_tid,
    conditional_tid,
    deviation,
    distance,
    independent_tid,
    measure_tid,
    near_eps,
    spread,
    tid,
    tid_error,
)

__all__ = [
    "ESTIMATES",
    "POPULATIONS",
    "TID",
    "Conditioning",
    "LayerMoments",
    "average_tid",
    "batch_norms",
    "collect_moments",
    "conditional_tid",
    "conditioning",
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
    "tid",
    "tid_error",
]
