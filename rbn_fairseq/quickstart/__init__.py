"""What ``scripts/quickstart.sh`` runs."""

from rbn_fairseq.quickstart.pipeline import NORMS, quickstart

__all__ = ["NORMS", "quickstart"]
