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
    distances,
    independent_tid,
    measure_tid,
    tid,
    tid_error,
)

__all__ = [
    # statistics of batches
    "LayerMoments", "batch_norms", "collect_moments", "measuring", "population_norms",
    # the population's
    "ESTIMATES", "POPULATIONS", "population", "recalibrate", "set_population",
    # what differs
    "TID", "average_tid", "conditional_tid", "deviation", "distances", "independent_tid",
    "measure_tid", "tid", "tid_error",
    # conditioning
    "Conditioning", "conditioning",
]  # fmt: skip
