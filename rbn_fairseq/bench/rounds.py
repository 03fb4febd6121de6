"""Actions timed in turn, so that what slows the machine slows all of them."""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

__all__ = ["milliseconds", "take_turns"]


def milliseconds(action: Callable[[], Any], device: str) -> float:
    """Return how long an action takes; on a GPU, between events around the work it queues."""
    if device == "cpu":
        start = time.perf_counter()
        action()
        return 1000 * (time.perf_counter() - start)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    action()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def take_turns(
    actions: Mapping[str, Callable[[], float]], rounds: int, label: str
) -> list[dict[str, float]]:
    """Let every action have its turn in each round.

    Each round has an order of its own, so that none always follows the same other; the orders
    are drawn alike in every process. A first round, not counted, warms up.

    Args:
        actions: what returns the milliseconds it took, by name.
        rounds: how many are counted.
        label: of the progress bar on stderr; none where it is empty.

    Returns:
        Milliseconds by name, round by round.
    """
    names = list(actions)
    turns = range(rounds + 1)
    draw = random.Random(1)
    taken = []
    console = Console(stderr=True, quiet=not label)
    for _ in track(turns, label, console=console, transient=True):
        times = {name: actions[name]() for name in draw.sample(names, len(names))}
        taken.append({name: times[name] for name in names})
    return taken[1:]
