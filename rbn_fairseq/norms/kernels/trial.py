"""Tests whether Triton works on a GPU, by launching one kernel."""

import logging

import torch

__all__ = ["works"]

logger = logging.getLogger(__name__)

_working: dict[tuple[int, torch.dtype], bool] = {}


@torch.compiler.assume_constant_result
def works(gpu: int, dtype: torch.dtype) -> bool:
    """Tell whether kernels run on a GPU with rows of a dtype; the first time, by running one.

    Where they do not, say why, once.
    """
    if (gpu, dtype) not in _working:
        if torch.cuda.is_current_stream_capturing():  # compiling would break the capture
            return False
        try:
            _launch(torch.device("cuda", gpu), dtype)
            _working[gpu, dtype] = True
        except Exception as reason:  # no Triton, no C compiler, a GPU that is too old
            _working[gpu, dtype] = False
            logger.warning(
                "Triton does not work on GPU %d with %s (%s: %s): batch norm runs without its "
                "kernels, slower", gpu, dtype, type(reason).__name__, reason,
            )  # fmt: skip
    return _working[gpu, dtype]


def _launch(device: torch.device, dtype: torch.dtype) -> None:
    # Imported late: there may be no Triton.
    from rbn_fairseq.norms.kernels.function import transform

    one = torch.ones(1, device=device)
    transform(one.to(dtype).view(1, 1), one, one)
