"""Label-smoothed cross-entropy of rows, without ever holding their logits."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["HAS_CHUNKS", "Loss", "Wanted", "label_smoothed_loss"]

#: Whether torch has the cross-entropy of a linear layer in chunks: 2.13 has.
HAS_CHUNKS = hasattr(nn, "LinearCrossEntropyOptions")
_ROWS = 512  # of logits that are there at a time on a CPU; for GPUs torch chooses


class Wanted(NamedTuple):
    """What a criterion asks a model's forward for in place of logits.

    Attributes:
        target: ``(B, T)``.
        padding: the value in ``target`` that has no loss.
        smoothing: probability mass spread over the other types.
    """

    target: Tensor
    padding: int
    smoothing: float


class Loss(NamedTuple):
    """Label-smoothed loss and negative log-likelihood, 0-dim, summed over the targets."""

    loss: Tensor
    nll: Tensor


def label_smoothed_loss(x: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Loss:
    """Return fairseq's label-smoothed cross-entropy of the logits ``x @ weight.T``.

    With V types, smoothing e, ``e_i = e / (V - 1)`` and logits z it is, summed over rows, ``(1 - e
    - e_i) nll + e_i sum_v(-log p_v)``. As ``-log p_v = lse(z) - z_v`` and ``nll = lse(z) - z_t``,
    its second part is ``e_i (V nll + V z_t - sum_v z_v)``: but for the nll, which torch computes in
    chunks, it is linear in z and needs no logits.

    Gradients are computed along with it, where they are wanted; its backward runs once.

    Args:
        x: rows ``(N, C)``, fp32 or fp64; no autocast.
        weight: of the output projection, ``(V, C)``.
        target: ``(N,)``, in ``[0, V)``.
        smoothing: e.
    """
    types = weight.shape[0]
    if x.is_cpu:
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=_ROWS, chunking_method=None)
    else:
        options = nn.LinearCrossEntropyOptions()
    nll = F.linear_cross_entropy(x, weight, target, reduction="sum", options=options)
    if not smoothing:
        return Loss(nll, nll.detach())
    each = smoothing / (types - 1)
    of_targets, of_all = (x * weight[target]).sum(), x.sum(0) @ weight.sum(0)
    loss = (1 - smoothing - each + each * types) * nll + each * (types * of_targets - of_all)
    return Loss(loss, nll.detach())
