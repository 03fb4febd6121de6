"""fairseq's translation task for models with batch norms."""

from typing import Any

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from rbn_fairseq.callbacks.base import WithCallbacks, with_options
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.tasks.callbacks import CALLBACKS
from rbn_fairseq.tasks.repairs import FairseqRepairs

__all__ = ["TranslationRBNTask"]


@register_task("translation_rbn", dataclass=with_options(TranslationConfig, CALLBACKS))
class TranslationRBNTask(WithCallbacks, FairseqRepairs, TranslationTask):
    """fairseq's ``translation`` with the callbacks for batch statistics and the monitors."""

    callbacks = CALLBACKS
    adapter = EncoderDecoder()

    def load_dataset(self, *args: Any, **kwargs: Any) -> None:
        """Load a part of the data; of several, fairseq's default is to take the first -1 times."""
        chosen = self.cfg.upsample_primary
        self.cfg.upsample_primary = 1 if chosen == -1 else chosen
        try:
            super().load_dataset(*args, **kwargs)
        finally:
            self.cfg.upsample_primary = chosen
