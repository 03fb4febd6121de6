"""Stand-ins on the CPU for the operations of torch's SyncBatchNorm, which only GPUs have."""

from contextlib import contextmanager
from unittest import mock

import torch

from rbn_fairseq.norms import normalise


def _elemt(rows, weight, bias, mean, inverse, eps):
    assert rows.is_contiguous()
    return ((rows - mean) * inverse * weight + bias).to(rows.dtype)


def _reduce(grad, rows, mean, inverse, weight, *wanted):
    assert grad.is_contiguous() and rows.is_contiguous()
    grad, rows = grad.to(mean.dtype), rows.to(mean.dtype)
    total, dot = grad.sum(0), (grad * (rows - mean)).sum(0)
    return total, dot, (dot * inverse).to(weight.dtype), total.to(weight.dtype)


def _backward_elemt(grad, rows, mean, inverse, weight, total, dot, counts):
    assert counts.dtype == torch.int32 and grad.is_contiguous() and rows.is_contiguous()
    n = counts.sum()
    return ((grad - total / n - (rows - mean) * inverse**2 * dot / n) * inverse * weight).to(
        rows.dtype
    )


STAND_INS = {
    "batch_norm_elemt": _elemt,
    "batch_norm_backward_reduce": _reduce,
    "batch_norm_backward_elemt": _backward_elemt,
}


@contextmanager
def on_the_cpu():
    """Let norms on the CPU go the way that they go on a GPU."""

    def serves(rows, weight, bias):
        return rows.numel() > 0 and weight.dtype == bias.dtype

    with (
        mock.patch.object(normalise, "_gpu_serves", serves),
        mock.patch.multiple(torch, **STAND_INS),
    ):
        yield
