"""Batch norm in training as one differentiable function, by the kernels."""

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.kernels.backward import differentiate
from rbn_fairseq.norms.kernels.forward import Normalised, normalise_and_move

__all__ = ["normalise_rows"]


class _Normalise(torch.autograd.Function):
    """(rows, weight, bias) -> (y, batch mean, batch variance), with all their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        settings: dict[str, Any],
    ) -> Normalised:
        rows = _channels_side_by_side(rows)
        with torch.cuda.device_of(rows):
            result = normalise_and_move(rows, weight, bias, *running, momentum=momentum, **settings)
        ctx.settings = settings
        ctx.save_for_backward(rows, weight, bias, result.mean, result.var, result.n)
        ctx.mark_non_differentiable(result.n, result.before, result.after)
        if isinstance(result.share, Tensor):
            ctx.mark_non_differentiable(result.share)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Optional[Tensor], grad_mean: Optional[Tensor], grad_var: Optional[Tensor],
        *_: None,
    ) -> tuple[Optional[Tensor], ...]:  # fmt: skip
        rows, weight, bias, mean, var, count = ctx.saved_tensors
        grad = torch.zeros_like(rows) if grad is None else _channels_side_by_side(grad)
        with torch.cuda.device_of(rows):
            gradients = differentiate(
                grad, rows, weight, bias, mean, var, count,
                None if grad_mean is None else grad_mean.contiguous(),
                None if grad_var is None else grad_var.contiguous(),
                **ctx.settings,
            )  # fmt: skip
        return *gradients, None, None, None


def _channels_side_by_side(rows: Tensor) -> Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()


# The kernels are compiled already.
_apply: Callable[..., tuple[Any, ...]] = torch.compiler.disable(_Normalise.apply)


def normalise_rows(
    rows: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor], *,
    momentum: float, eps: float, clamp: bool, sync: bool, counted: bool = True,
) -> Normalised:  # fmt: skip
    """Do what :func:`~rbn_fairseq.norms.kernels.forward.normalise_and_move` does, with gradients.

    They come for y, mean and variance, and go to rows, weight and bias.
    """
    settings = {"eps": eps, "clamp": clamp, "sync": sync, "counted": counted}
    return Normalised(*_apply(rows, weight, bias, running, momentum, settings))
