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
        real = sum(len(part) for part in parts)
        if len(parts) == 2:
            moments = [_join_two(*moments[0], *moments[1], len(parts[1]) / real)]
        if real > 0:
            return *moments[0], rows.new_full((), real)
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


def _join_two(
    mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """Join two parts likewise; ``share`` is the second one's of the rows."""
    apart = other_mean - mean
    var = torch.addcmul(var.lerp(other_var, share), apart, apart, value=share * (1 - share))
    return torch.add(mean, apart, alpha=share), var


def gradient_sums(
    grad: Tensor, rows: Tensor, mean: Tensor, inverse_std: Tensor, tokens: ValidTokens
) -> tuple[Tensor, Tensor]:
    """Return the sums over real tokens of ``grad`` and of ``grad * (rows - mean) * inverse_std``.

    They are the gradients of bias and weight.

    Args:
        grad: ``(tokens, C)``.
        rows: ``(tokens, C)``, in the dtype of ``grad``.
        mean: ``(C,)``.
        inverse_std: ``(C,)``.
        tokens: which rows are real.
    """
    if not has_kernels(rows, tokens):
        grad, rows = tokens.clear(grad), tokens.clear(rows)
        return grad.sum(0), (grad * (rows - mean)).sum(0) * inverse_std
    dot, total = torch.zeros_like(mean), torch.zeros_like(mean)
    for part in zip(tokens.parts(grad), tokens.parts(rows), strict=True):
        _, *sums = batch_norm_backward(*part, None, mean, inverse_std, (False, True, True))
        dot, total = dot + sums[0], total + sums[1]
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
