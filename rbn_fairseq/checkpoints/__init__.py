"""Checkpoint files: loading, averaging, recalibrating."""

from rbn_fairseq.checkpoints.loading import allow_fairseq_types

allow_fairseq_types()

__all__ = ["allow_fairseq_types"]
