"""Where the time of a training update goes: operator by operator, settings side by side."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rbn_fairseq.bench.training import make_trainer, train

__all__ = ["profile_updates"]


def _own_times(trainer: Any, batches: Sequence[Any]) -> dict[str, float]:
    """Return milliseconds per update by operator, what it calls not counted in."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        train(trainer, batches)
    kind = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    own = {event.key: getattr(event, kind) for event in profiler.key_averages()}  # microseconds
    return {name: time / 1000 / len(batches) for name, time in own.items() if time > 0}


def profile_updates(
    data: str, settings: dict[str, Sequence[str]], common: Sequence[str], updates: int = 5
) -> dict[str, dict[str, float]]:
    """Profile training updates of several settings on the same batches.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: fairseq-train's options by name.
        common: options of all settings.
        updates: how many are profiled, as many before them warm up.

    Returns:
        By setting and operator: milliseconds per update that the operator took itself; on a GPU,
        by kernel and of the GPU's time. The profiler's own cost is in them.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    times = {}
    for name, own in settings.items():
        trainer = make_trainer(data, [*common, *own])
        epoch = trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=True)
        batches = list(itertools.islice(epoch, updates))
        train(trainer, batches)
        times[name] = _own_times(trainer, batches)
    return times
