"""Batch norm on GPUs: three launches forward, three backward, without a wait for the host.

The kernels are written in Triton, which comes with torch's builds for GPUs; where it is missing
or does not work, torch's own operations serve.
"""

import torch
from torch import Tensor

__all__ = ["serve"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serve(rows: Tensor, *vectors: Tensor) -> bool:
    """Tell whether the kernels can normalise ``rows: (..., C)``.

    They lie on a GPU where Triton works; the ``vectors`` (parameters and running statistics) are
    ``(C,)``, dense, on the same GPU; nothing is fp64.
    """
    if not rows.is_cuda or rows.dtype not in _DTYPES:
        return False
    for vector in vectors:
        alike = vector.shape == rows.shape[-1:] and vector.device == rows.device
        if not (alike and vector.is_contiguous() and vector.dtype in _DTYPES):
            return False
    # Imported late: it loads torch's compiler.
    from rbn_fairseq.norms.kernels.trial import works

    answer: bool = works(rows.device.index, rows.dtype)
    return answer
