"""fairseq's translation task for models with batch norms."""

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
