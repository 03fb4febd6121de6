"""The machine: description, freed memory, rate of matrix products, peaks of memory."""

import ctypes
import gc
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from rbn_fairseq.measuring.run_file import describe_start
from rounds import milliseconds

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
with suppress(ImportError):  # torch before 2.13; otherwise it makes the operation known
    import torch.nn.modules.linear_cross_entropy  # noqa: F401
_LOSS = getattr(torch.ops.torch_nn, "_linear_cross_entropy_batch_chunked", None)
_Shape = tuple[int, ...]


def _loss_flop_count(x: _Shape, weight: _Shape, *_: Any, out_shape: Any, **__: Any) -> int:
    """Count the logits' operations and those of gradients that are made along with the loss."""
    _, *gradients = out_shape[:3]
    return 2 * x[0] * x[1] * weight[0] * (1 + sum(0 not in shape for shape in gradients))


# Operations from shapes, of what torch's own counter leaves out.
_LEFT_OUT: dict[Any, Callable[..., int]] = {
    _ATTENTION: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    _ATTENTION_BACKWARD: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(g, q, k, v),
    **({} if _LOSS is None else {_LOSS: _loss_flop_count}),
}
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


def product_timer(device: str, dtype: str) -> Callable[[float], float]:
    """Return what times floating-point operations, at the rate of a product of large matrices."""
    side = 1024 if device == "cpu" else 8192
    factor = torch.rand(side, side, device=device, dtype=getattr(torch, dtype))
    out = torch.empty_like(factor)

    def time(flops: float) -> float:
        duration = milliseconds(lambda: torch.mm(factor, factor, out=out), device)
        return duration * flops / (2 * side**3)

    return time


def count_flops(action: Callable[[], Any]) -> int:
    """Return the floating-point operations of an action's matrix products, both ways."""
    with FlopCounterMode(display=False, custom_mapping=_LEFT_OUT) as counter:
        action()
    return int(counter.get_total_flops())


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
