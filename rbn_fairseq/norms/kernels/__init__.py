"""Batch norm on GPUs: three launches forward, three backward, without a wait for the host.

The kernels are written in Triton, which comes with torch's builds for GPUs; where it is missing,
torch's own operations serve.
"""

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["serve"]

logger = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serve(rows: Tensor, *others: Tensor) -> bool:
    """Tell whether the kernels can normalise ``rows: (tokens, C)``.

    They lie on the current GPU, are not empty, and neither they nor the ``others`` (parameters
    and running statistics) are fp64.
    """
    return (
        rows.is_cuda
        and rows.numel() > 0
        and rows.device.index == torch.cuda.current_device()
        and all(tensor.dtype in _DTYPES for tensor in (rows, *others))
        and _have_triton()
    )


@cache
def _have_triton() -> bool:
    there = find_spec("triton") is not None
    if not there:
        logger.warning("Triton is not installed: batch norm runs without its kernels, slower")
    return there
