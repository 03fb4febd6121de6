"""The machine: description, freed memory, peaks of memory."""

import ctypes
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from rbn_fairseq.measuring.run_file import describe_start

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def describe(device: str) -> dict[str, str]:
    """Return what ran, by name: the machine, and the versions of what ran on it."""
    start = describe_start(nn.Linear(1, 1, device=device), update=0, processes=1)
    machine, versions = start["machine"], start["versions"]
    versions["rbn_fairseq"] += f" {start['commit'] or ''}".rstrip()
    processor = f"{machine['processor']}, {os.cpu_count()} cores"
    return {
        "machine": processor if device == "cpu" else machine["device"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def keep_freed_memory() -> None:
    """Make glibc's allocator, where there is one, keep freed memory in the process.

    By default it returns large blocks to the system, so that each tensor costs a page fault for
    every 4 KiB: as much as a norm itself, and by chance. There is no way back in the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


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


def _cpu_peak(action: Callable[[], Any]) -> int:
    """Add up the blocks that torch's allocator gives and takes back, as its profiler records."""
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
