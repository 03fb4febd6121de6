"""fairseq's translation task for models with batch norms."""

from dataclasses import dataclass

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from rbn_fairseq.tasks.conditioning import ConditioningConfig, ConditioningMonitor
from rbn_fairseq.tasks.init_from import InitFromConfig, InitFromTask
from rbn_fairseq.tasks.length_bins import LengthBinsTask
from rbn_fairseq.tasks.length_mixing import LengthMixingConfig, LengthMixingTask
from rbn_fairseq.tasks.monitor import MonitorConfig, TIDMonitor
from rbn_fairseq.tasks.multipliers import MultiplierConfig, MultiplierTask
from rbn_fairseq.tasks.nan_search import NanSearchTask
from rbn_fairseq.tasks.resuming import ResumableTask
from rbn_fairseq.tasks.running_statistics import RunningStatisticsTask
from rbn_fairseq.tasks.training import CheckedTask, TrainingConfig
from rbn_fairseq.tasks.training_batches import TrainingBatchesTask
from rbn_fairseq.tasks.trouble import TroubleConfig, TroubleWatch

__all__ = ["TranslationRBNTask"]

#: This package's options for a training.
OWN_OPTIONS = (
    MonitorConfig,
    ConditioningConfig,
    InitFromConfig,
    TroubleConfig,
    LengthMixingConfig,
    MultiplierConfig,
    TrainingConfig,
)


@dataclass
class TranslationRBNConfig(*OWN_OPTIONS, TranslationConfig):
    """fairseq's options for translation, and this package's for a training."""


@register_task("translation_rbn", dataclass=TranslationRBNConfig)
class TranslationRBNTask(
    TIDMonitor,
    ConditioningMonitor,
    InitFromTask,
    TroubleWatch,
    MultiplierTask,
    RunningStatisticsTask,
    LengthMixingTask,
    ResumableTask,
    NanSearchTask,
    LengthBinsTask,
    TrainingBatchesTask,
    CheckedTask,
    TranslationTask,
):
    """fairseq's ``translation`` with the care that batch statistics need, and the monitors."""
