"""Sums over the real tokens of one process: by torch's batch-norm kernels where they serve.

Those of the CPU make both sums in one call, with the accuracy of torch's batch norm: in fp32 the
mean is right to about 1e-6 of itself. Elsewhere the formulas are written out; padding is then a
zero, not dropped.
"""

import torch
from torch import Tensor

from rbn_fairseq.norms.tokens import ValidTokens

__all__ = ["batch_norm_backward", "gradient_sums", "has_kernels", "join", "mean_and_variance"]


def has_kernels(rows: Tensor, tokens: ValidTokens) -> bool:
    """Tell whether torch's kernels can sum over packed rows."""
    return rows.is_cpu and tokens.drops and rows.numel() > 0


def mean_and_variance(rows: Tensor, tokens: ValidTokens) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance and number of the real tokens.

    Two passes (the mean, then squared distances to it), because E[x^2] - E[x]^2 loses the
    variance of a channel with a large mean.

    Args:
        rows: ``(tokens, C)``, fp32 or fp64.
        tokens: which rows are real.

    Returns:
        ``(C,)``, ``(C,)`` and 0-dim; all 0 without any real token.
    """
    if has_kernels(rows, tokens):
        parts = tokens.parts(rows)
        moments = [torch.batch_norm_update_stats(part, None, None, 0.0) for part in parts]
        if len(parts) == 1:
            return *moments[0], rows.new_full((), len(parts[0]))
        if len(parts) == 2:
            means, variances = (torch.stack(values) for values in zip(*moments, strict=True))
            counts = rows.new_tensor([[len(part)] for part in parts])
            return join(means, variances * counts, counts)
    packed = tokens.pack(rows)
    count = tokens.count(packed)
    mean = packed.sum(0) / count.clamp(min=1)
    squares = tokens.zero_padding_(packed - mean).square_().sum(0)
    return mean, squares / count.clamp(min=1), count


def join(means: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join the moments of disjoint parts.

    Follows Chan, Golub, LeVeque (1979), "Updating formulae and a pairwise algorithm for
    computing sample variances", Eq. 2.1, for any number of parts.

    Args:
        means: ``(parts, C)``.
        squares: sums of squared distances to them, ``(parts, C)``.
        counts: ``(parts, 1)``.

    Returns:
        Mean and biased variance, ``(C,)``, and the number behind them, 0-dim; all 0 where it is 0.
    """
    total = counts.sum()
    joint = (counts * means).sum(0) / total.clamp(min=1)
    between = counts * (means - joint).square()
    return joint, (squares + between).sum(0) / total.clamp(min=1), total


def gradient_sums(
    grad: Tensor, rows: Tensor, mean: Tensor, tokens: ValidTokens
) -> tuple[Tensor, Tensor]:
    """Return the sums over real tokens of ``grad`` and of ``grad * (rows - mean)``.

    Args:
        grad: ``(tokens, C)``, zero at padding.
        rows: ``(tokens, C)``, in the dtype of ``grad``; anything at padding.
        mean: ``(C,)``.
        tokens: which rows are real.
    """
    if not has_kernels(rows, tokens):
        return grad.sum(0), (grad * (tokens.clear(rows) - mean)).sum(0)
    total, dot = _kernel_sums(grad, rows, mean)
    if tokens.valid is not None and not dot.isfinite().all():  # padding may be: 0 * inf is NaN
        total, dot = _kernel_sums(grad, tokens.clear(rows), mean)
    return total, dot


def batch_norm_backward(
    grad: Tensor,
    rows: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return torch's gradients of rows, weight and bias of a batch norm that sees all rows."""
    return torch.ops.aten.native_batch_norm_backward(  # type: ignore[no-any-return]
        grad, rows, weight, None, None, mean, inverse_std, True, 0.0, list(needs)
    )


def _kernel_sums(grad: Tensor, rows: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    # With 1 for the inverse deviation the gradient of the weight is the sum of products.
    ones, needs = torch.ones_like(mean), (False, True, True)
    _, dot, total = batch_norm_backward(grad, rows, None, mean, ones, needs)
    return total, dot
