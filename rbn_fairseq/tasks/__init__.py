"""fairseq tasks for models with batch norms."""

from rbn_fairseq.tasks.translation_rbn import TranslationRBNTask

__all__ = ["TranslationRBNTask"]
