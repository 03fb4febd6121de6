"""Peak of live memory of an action."""

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
    live = peak = 0
    for block in sorted(blocks, key=lambda event: event["ts"]):
        live += block["args"]["Bytes"]
        peak = max(peak, live)
    return peak


def peak_bytes(action: Callable[[], Any], device: str) -> int:
    """Return by how much the memory of live tensors grows, at most, while an action runs.

    What the allocator keeps for later, and what libraries take past torch's allocator, is not
    counted.
    """
    if device == "cpu":
        return _cpu_peak(action)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    action()
    return torch.cuda.max_memory_allocated() - before
