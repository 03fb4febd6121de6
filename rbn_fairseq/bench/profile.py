"""Where the time of a training update goes: operator by operator, settings side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rbn_fairseq.bench.rows import Row
from rbn_fairseq.bench.training import draw, make_trainers, real_tokens, train, training_dtype

__all__ = ["profile_updates"]

_ALL, _REST = "all operators", "the others"


def _own_times(trainer: Any, batches: Sequence[Any], device: str) -> dict[str, float]:
    """Return milliseconds per update by operator, what it calls not counted in."""
    on_gpu = device == "cuda"
    with profile(activities=[getattr(ProfilerActivity, device.upper())]) as profiler:
        train(trainer, batches)
        if on_gpu:
            torch.cuda.synchronize()
    kind = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    own = {event.key: getattr(event, kind) for event in profiler.key_averages()}  # microseconds
    return {name: time / 1000 / len(batches) for name, time in own.items()}


def _largest(times: Mapping[str, Mapping[str, float]], top: int) -> list[str]:
    operators = dict.fromkeys(name for own in times.values() for name in own)
    most = {name: max(own.get(name, 0) for own in times.values()) for name in operators}
    return sorted(most, key=most.__getitem__, reverse=True)[:top]


def profile_updates(
    data: str,
    settings: Mapping[str, Sequence[str]],
    common: Sequence[str],
    updates: int = 5,
    top: int = 15,
    device: str = "cpu",
    threads: int = 1,
) -> list[Row]:
    """Profile training updates of several settings, each on batches of its own.

    Settings whose options make the same batches have the same ones. A row has milliseconds per
    update that an operator took itself, on a GPU those of a kernel; ratios are those of the times
    per real token. The profiler's own cost is in them.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: fairseq-train's options by name; the first is the reference.
        common: options of all settings.
        updates: how many are profiled, as many before them warm up; on batches drawn uniformly.
        top: operators that have a row of their own: those that take longest in any setting.
        device: ``cpu`` or ``cuda``.
        threads: of torch, as they are set.

    Raises:
        ValueError: if fairseq-train does not take the options, or settings differ in the size of
            batches, the seed or the precision.
    """
    arguments = {name: [*common, *own] for name, own in settings.items()}
    trainers = make_trainers(data, arguments, device)
    first, *_ = trainers.values()
    times: dict[str, dict[str, float]] = {}
    tokens: dict[str, float] = {}
    for name, trainer in trainers.items():
        (batches,) = draw(trainer, updates, 1)
        tokens[name] = real_tokens(batches) / len(batches)
        train(trainer, batches)
        times[name] = _own_times(trainer, batches, device)
    shown = _largest(times, top)
    rows = []
    for operator in (*shown, _REST, _ALL):
        taken = {
            name: sum(
                ms
                for key, ms in own.items()
                if key == operator or operator == _ALL or (operator == _REST and key not in shown)
            )
            for name, own in times.items()
        }
        reference, *_ = (ms / tokens[name] for name, ms in taken.items())
        rows += [
            Row(
                bench="profile",
                norm=name,
                device=device,
                threads=threads,
                dtype=training_dtype(first.cfg),
                case=operator,
                ms=ms,
                ratio_to_layer=ms / tokens[name] / reference if reference else None,
                tokens=tokens[name],
                n=updates,
            )
            for name, ms in taken.items()
        ]
    return rows
