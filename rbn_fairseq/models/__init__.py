"""Transformers with a choice of norms, for fairseq."""

import fairseq  # noqa: F401 - which registers this and its sister packages

from rbn_fairseq.models.classifier import RBNTransformerClassifier
from rbn_fairseq.models.language_model import RBNTransformerLanguageModel
from rbn_fairseq.models.tagger import RBNTransformerTagger
from rbn_fairseq.models.transformer import RBNTransformerModel

__all__ = [
    "RBNTransformerClassifier", "RBNTransformerLanguageModel", "RBNTransformerModel",
    "RBNTransformerTagger",
]  # fmt: skip
