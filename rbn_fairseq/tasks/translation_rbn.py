"""fairseq's translation task for models with batch norms."""

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from rbn_fairseq.callbacks.base import WithCallbacks, with_options
from rbn_fairseq.callbacks.conditioning_monitor import ConditioningMonitor
from rbn_fairseq.callbacks.init_from import InitFrom
from rbn_fairseq.callbacks.length_bins import LengthBinEdges
from rbn_fairseq.callbacks.length_mixing import LengthMixing
from rbn_fairseq.callbacks.resume import Resume
from rbn_fairseq.callbacks.running_statistics import RunningStatistics
from rbn_fairseq.callbacks.start import Start
from rbn_fairseq.callbacks.tid_monitor import TIDMonitor
from rbn_fairseq.callbacks.trouble import Trouble
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.tasks.repairs import FairseqRepairs

__all__ = ["CALLBACKS", "TranslationRBNTask"]

#: In the order in which they run.
CALLBACKS = (
    Start,
    RunningStatistics,  # first of those that look at an update: it drops what was not made
    LengthMixing,  # before what is computed from the training's batches
    LengthBinEdges,
    InitFrom,
    Resume,
    Trouble,
    ConditioningMonitor,
    TIDMonitor,  # behind InitFrom, whose statistics it measures before the first update
)


@register_task("translation_rbn", dataclass=with_options(TranslationConfig, CALLBACKS))
class TranslationRBNTask(WithCallbacks, FairseqRepairs, TranslationTask):
    """fairseq's ``translation`` with the callbacks for batch statistics and the monitors."""

    callbacks = CALLBACKS
    adapter = EncoderDecoder()
