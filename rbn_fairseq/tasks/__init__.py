"""fairseq tasks for models with batch norms."""

import fairseq  # noqa: F401 - which registers this and its sister packages

from rbn_fairseq.tasks.language_modeling_rbn import LanguageModelingRBNTask
from rbn_fairseq.tasks.sequence_tagging_rbn import SequenceTaggingRBNTask
from rbn_fairseq.tasks.text_classification_rbn import TextClassificationRBNTask
from rbn_fairseq.tasks.translation_rbn import TranslationRBNTask

__all__ = [
    "LanguageModelingRBNTask", "SequenceTaggingRBNTask", "TextClassificationRBNTask",
    "TranslationRBNTask",
]  # fmt: skip
