"""Label-smoothed cross-entropy of rows, without ever holding their logits."""

from typing import NamedTuple, Optional

import torch.nn.functional as F
from torch import Tensor, nn

from rbn_fairseq.norms import BatchLayout

__all__ = ["HAS_CHUNKS", "Loss", "Wanted", "label_smoothed_loss", "pack_targets"]

#: Whether torch has the cross-entropy of a linear layer in chunks: 2.13 has.
HAS_CHUNKS = hasattr(nn, "LinearCrossEntropyOptions")
_ROWS = 512  # of logits that are there at a time on a CPU; for GPUs torch chooses


class Wanted(NamedTuple):
    """Request of a criterion to a model's forward for a loss in place of logits.

    Attributes:
        target: ``(B, T)``.
        padding: the value in ``target`` that has no loss.
        smoothing: probability mass spread over the other types.
        tokens: number of targets that have a loss; ``None`` = not known.
    """

    target: Tensor
    padding: int
    smoothing: float
    tokens: Optional[int] = None


class Loss(NamedTuple):
    """Label-smoothed loss and negative log-likelihood, 0-dim, summed over the targets."""

    loss: Tensor
    nll: Tensor


def pack_targets(target: Tensor, layout: BatchLayout, tokens: Optional[int] = None) -> Tensor:
    """Return the targets of rows, ``(N,)``, of ``target: (B, T)``.

    Args:
        target: padding where there is none.
        layout: of the rows.
        tokens: number of targets, by which the data count the loss; ``None`` = not known.

    Raises:
        ValueError: if ``target`` is not of the layout's padded shape, or has more targets than
            there are rows.
    """
    if target.shape != layout.positions:
        raise ValueError(
            f"`target` has shape {tuple(target.shape)}, but `prev_output_tokens` had "
            f"{tuple(layout.positions or ())}. Give a target for each position, padding where "
            "there is none."
        )
    if tokens is not None and tokens > layout.rows:
        raise ValueError(
            f"`target` has {tokens} tokens, but `prev_output_tokens` only {layout.rows}: the "
            "others would have no loss. Pad both alike."
        )
    return layout.pack(target)


def label_smoothed_loss(x: Tensor, weight: Tensor, layout: BatchLayout, wanted: Wanted) -> Loss:
    """Return fairseq's label-smoothed cross-entropy of the logits ``x @ weight.T``.

    With V types, smoothing e, ``e_i = e / (V - 1)`` and logits z it is, summed over rows, ``(1 - e
    - e_i) nll + e_i sum_v(-log p_v)``. As ``-log p_v = lse(z) - z_v`` and ``nll = lse(z) - z_t``,
    its second part is ``e_i (V nll + V z_t - sum_v z_v)``: but for the nll, which torch computes in
    chunks, it is linear in z and needs no logits.

    Gradients are computed along with it, where they are wanted; its backward runs once.

    Args:
        x: rows ``(N, C)``, fp32 or fp64; no autocast.
        weight: of the output projection, ``(V, C)``.
        layout: of the rows.
        wanted: the targets, and what to compute.

    Raises:
        ValueError: as :func:`pack_targets`.
    """
    target = pack_targets(wanted.target, layout, wanted.tokens)
    if target.is_cpu or wanted.tokens != layout.rows:  # else none is padding
        real = target.ne(wanted.padding)
        if not real.all():
            x, target = x[real], target[real]
    types, smoothing = weight.shape[0], wanted.smoothing
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
