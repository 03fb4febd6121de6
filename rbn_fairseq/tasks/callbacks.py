"""The callbacks that all tasks of the plugin have."""

from rbn_fairseq.callbacks.conditioning_monitor import ConditioningMonitor
from rbn_fairseq.callbacks.init_from import InitFrom
from rbn_fairseq.callbacks.length_bins import LengthBinEdges
from rbn_fairseq.callbacks.length_mixing import LengthMixing
from rbn_fairseq.callbacks.resume import Resume
from rbn_fairseq.callbacks.running_statistics import RunningStatistics
from rbn_fairseq.callbacks.schedules import Schedules
from rbn_fairseq.callbacks.start import Start
from rbn_fairseq.callbacks.tid_monitor import TIDMonitor

__all__ = ["CALLBACKS"]

#: In the order in which they run.
CALLBACKS = (
    Start,
    Schedules,
    RunningStatistics,  # first of those that look at an update: it drops what was not made
    LengthMixing,  # before what is computed from the training's batches
    LengthBinEdges,
    InitFrom,
    Resume,
    ConditioningMonitor,
    TIDMonitor,  # behind InitFrom, whose statistics it measures before the first update
)
