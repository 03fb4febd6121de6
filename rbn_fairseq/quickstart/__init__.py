"""The quickstart: three small trainings on real text, measured, scored and reported."""

from rbn_fairseq.quickstart.pipeline import NORMS, quickstart

__all__ = ["NORMS", "quickstart"]
