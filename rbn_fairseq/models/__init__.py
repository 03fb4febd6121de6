"""Transformers with a choice of norms, for fairseq."""

from rbn_fairseq.models.transformer import RBNTransformerModel

__all__ = ["RBNTransformerModel"]
