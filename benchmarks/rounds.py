"""Rounds of interleaved times, and the rows of a table that they become."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import pandas as pd
import torch
from rich.console import Console
from rich.progress import track

#: One measurement, as it stands in JSON; :func:`summarise` has its fields.
Row = dict[str, Any]


def milliseconds(action: Callable[[], Any], device: str) -> float:
    """Return how long an action takes, on a GPU to the end of the work that it queues."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    action()
    wait()
    return 1000 * (time.perf_counter() - start)


def take_turns(
    actions: Mapping[str, Callable[[], float]], rounds: int, label: str
) -> list[dict[str, float]]:
    """Time all actions in each round.

    Each round has an order of its own, so that none always follows the same other. A first round,
    not counted, warms up.

    Args:
        actions: what returns the milliseconds it took, by name.
        rounds: how many are counted.
        label: of the progress bar on stderr.
    """
    names = list(actions)
    draw = random.Random(1)
    timings = []
    for _ in track(range(rounds + 1), label, console=Console(stderr=True), transient=True):
        times = {name: actions[name]() for name in draw.sample(names, len(names))}
        timings.append({name: times[name] for name in names})
    return timings[1:]


def summarise(
    rounds: Sequence[Mapping[str, float]],
    tokens: Optional[Mapping[str, float]] = None,
    **fields: Any,
) -> list[Row]:
    """Summarise rounds, name by name, against the first one.

    Ratios are taken round by round: a slow round is slow for both.

    Args:
        rounds: milliseconds by name.
        tokens: real tokens of an update by name, where the rounds' times are those of a token.
        fields: of all rows: ``bench`` (what is timed), ``case`` (what on), ``device``,
            ``threads``, ``dtype``.

    Returns:
        Rows: the fields, ``norm`` (the name), ``ms`` (median, of an update where there are
        tokens), ``ratio_to_layer`` (median ratio to the first name), ``spread`` (its first and
        third quartile), ``n`` (rounds), ``tokens``.
    """
    times = pd.DataFrame(rounds)
    ratios = times.div(times.iloc[:, 0], axis=0)
    rows = []
    for name in times:
        row = {
            "norm": name,
            "ms": float(times[name].median()),
            "ratio_to_layer": float(ratios[name].median()),
            "n": len(times),
            "spread": ratios[name].quantile([0.25, 0.75]).tolist(),
        }
        if tokens:
            row |= {"ms": row["ms"] * tokens[name], "tokens": tokens[name]}
        rows.append(fields | row)
    return rows
