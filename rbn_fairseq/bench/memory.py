"""Peak of live memory of an action."""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def _cpu_peak(action: Callable[[], Any]) -> int:
    """Add up the blocks that torch's allocator gives and takes back, as its profiler tells."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    with TemporaryDirectory() as directory:
        trace = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    blocks = [event for event in events if event["name"] == "[memory]"]
    live: dict[int, int] = {}  # bytes by address
    size = peak = 0
    for block in sorted(blocks, key=lambda event: event["ts"]):
        address, given = block["args"]["Addr"], block["args"]["Bytes"]
        if given > 0:
            live[address] = given
            size += given
        else:  # perhaps of what was there before
            size -= live.pop(address, 0)
        peak = max(peak, size)
    return peak


def peak_bytes(action: Callable[[], Any], device: str) -> int:
    """Return how much memory live tensors of an action take at most.

    What the allocator keeps for later, and what libraries take past torch's allocator, is not
    counted.
    """
    gc.collect()  # or it might happen in the action
    if device == "cpu":
        return _cpu_peak(action)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    action()
    return torch.cuda.max_memory_allocated() - before
