"""Moments of a batch, over one process or all of them: the only distributed code.

Statistics are around the mean, never of squares alone, in fp32 or better, by torch's batch-norm
kernels where they serve: on CPUs (in two passes) and GPUs (in one, by Welford's updates) by one
call, with the accuracy of torch's batch norm (in fp32 the mean is right to about 1e-6 of itself).
"""

from typing import NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from rbn_fairseq.norms.tokens import BatchLayout

__all__ = [
    "BinMoments", "Moments", "all_reduce_sum", "batch_moments", "bin_moments", "gather",
    "has_kernels", "join", "join_processes", "mean_and_variance", "mean_over_processes",
    "process_rank", "world_size",
]  # fmt: skip


class BinMoments(NamedTuple):
    """Statistics of a batch's tokens by the bin of their sentence's length.

    mean: ``(G, C)``; var: ``(G, C)``, biased; n: ``(G,)``. All 0 for a bin without tokens.
    """

    mean: Tensor
    var: Tensor
    n: Tensor


class Moments(NamedTuple):
    """Statistics of the tokens of a batch.

    mean: ``(C,)``; var: ``(C,)``, biased; n: 0-dim, the number of tokens behind them
    (over all processes when synchronised); share: 0-dim, this process's part in what all
    processes that share the statistics count once (1 without synchronisation, otherwise equal
    parts for the processes that have tokens); bins: the same by length, where it is asked for.
    """

    mean: Tensor
    var: Tensor
    n: Tensor
    share: Tensor | float = 1.0
    bins: Optional[BinMoments] = None


def world_size(sync: bool) -> int:
    """Return how many processes share one set of statistics."""
    return dist.get_world_size() if sync and dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Return the rank of this process; 0 where nothing is distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def all_reduce_sum(values: Tensor, sync: bool) -> Tensor:
    """Sum ``values`` over all processes, in place, in one collective. Nothing without ``sync``."""
    if world_size(sync) > 1:
        dist.all_reduce(values)
    return values


def mean_over_processes(tensors: list[Tensor]) -> None:
    """Replace each tensor, in place, by its mean over all processes, in one collective."""
    world = world_size(sync=True)
    if world == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world
    for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def gather(values: Tensor) -> Tensor:
    """Return the ``values: (n,)`` of all processes, ``(processes, n)``, by one collective."""
    parts = values.new_empty(world_size(sync=True), values.numel())
    dist.all_gather_into_tensor(parts.view(-1), values)  # gloo wants a flat one
    return parts


def has_kernels(rows: Tensor) -> bool:
    """Tell whether torch's batch-norm kernels serve to sum over rows."""
    return (rows.is_cpu or rows.is_cuda) and rows.numel() > 0


def wide(rows: Tensor) -> Tensor:
    """Return rows in fp32 or better; on a GPU as they are, since its kernels sum in fp32."""
    if rows.is_cuda and has_kernels(rows):
        return rows
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def mean_and_variance(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance and number of rows.

    From distances to the mean, because E[x^2] - E[x]^2 loses the variance of a channel with a
    large mean.

    Args:
        rows: ``(N, C)``.

    Returns:
        ``(C,)``, ``(C,)`` and 0-dim, fp32 or fp64; all 0 without any row.
    """
    rows = wide(rows)
    if has_kernels(rows):
        mean, var = torch.batch_norm_update_stats(rows, None, None, 0.0)
        return mean, var, mean.new_full((), len(rows))
    count, number = rows.new_full((), len(rows)), max(len(rows), 1)
    mean = rows.sum(0) / number
    return mean, (rows - mean).square_().sum(0) / number, count


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


def batch_moments(rows: Tensor, sync: bool) -> Moments:
    """Mean and biased variance of rows, in fp32 or better.

    Args:
        rows: ``(N, C)``.
        sync: join the statistics of all processes: one collective of 2C + 1 numbers.

    Returns:
        The moments. Without any row, all three are 0.
    """
    return join_processes(*mean_and_variance(rows), sync)


def join_processes(mean: Tensor, var: Tensor, count: Tensor, sync: bool) -> Moments:
    """Join the statistics of all processes, in one collective. As they are without ``sync``."""
    if world_size(sync) == 1:
        return Moments(mean, var, count)
    parts = gather(torch.cat([mean, var * count, count.view(1)]))
    means, squares, counts = parts.split([mean.numel(), mean.numel(), 1], dim=1)
    share = (count > 0) / (counts > 0).sum().clamp(min=1)
    return Moments(*join(means, squares, counts), share)


def bin_moments(
    batch: Moments, rows: Tensor, layout: BatchLayout, edges: Tensor, sync: bool
) -> BinMoments:
    """Mean and biased variance of rows by the bin of their sentence's length.

    One pass, around the batch's mean.

    Args:
        batch: the moments of all of them.
        rows: ``(N, C)``.
        layout: which sentence each is of.
        edges: where the second and later bins begin, ``(G - 1,)``.
        sync: join the statistics of all processes: one collective of G (2C + 1) numbers.
    """
    lengths = layout.lengths
    index = torch.bucketize(lengths.to(edges.dtype), edges, right=True)
    chosen = index == torch.arange(len(edges) + 1, device=index.device).unsqueeze(1)  # (G, B)
    if rows.is_cpu and world_size(sync) == 1 and chosen.all(1).any():  # of one bin: the batch's
        n = chosen.any(1) * batch.n
        some = (n > 0).unsqueeze(1)
        return BinMoments(batch.mean.where(some, 0), batch.var.where(some, 0), n)
    apart = rows.to(batch.mean.dtype) - batch.mean
    sums = torch.cat([layout.sums(apart), layout.sums(apart.square())], 1)  # (B, 2 C)
    # A product of matrices, in fp64, because it has one order on every device.
    counted = torch.cat([sums.double(), lengths.double().unsqueeze(1)], 1)
    by_bin = all_reduce_sum(chosen.double() @ counted, sync)  # (G, 2 C + 1)
    n = by_bin[:, -1]
    near, square = (by_bin[:, :-1] / n.clamp(min=1).unsqueeze(1)).chunk(2, 1)
    mean = (batch.mean + near).where(n.unsqueeze(1) > 0, 0)
    return BinMoments(mean, (square - near.square()).clamp(min=0), n)
