"""Checkpoint files: loading, averaging, recalibrating."""

import fairseq  # noqa: F401 - which registers this and its sister packages

from rbn_fairseq.checkpoints.expressions import run_no_settings
from rbn_fairseq.checkpoints.loading import allow_fairseq_types

allow_fairseq_types()
run_no_settings()

__all__ = ["allow_fairseq_types", "run_no_settings"]
