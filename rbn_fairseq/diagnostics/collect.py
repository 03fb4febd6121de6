"""Batch statistics of a model's batch norms, this package's or torch's own, over many batches."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import call
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.parameter import is_lazy

from rbn_fairseq.norms import BatchNorm, PopulationNorm, Record, freeze_statistics, record_moments
from rbn_fairseq.norms.moments import BinMoments, all_reduce_sum, batch_moments

__all__ = [
    "BinSums", "LayerMoments", "batch_norms", "collect_moments", "measuring", "population_norms",
]  # fmt: skip


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the batch norms of a model by name, in the order of its modules.

    Both this package's and torch's ``BatchNorm1d``, ``2d``, ``3d`` and ``SyncBatchNorm``.
    """
    kinds = (BatchNorm, TorchBatchNorm)
    return {name: part for name, part in model.named_modules() if isinstance(part, kinds)}


def population_norms(model: nn.Module) -> dict[str, PopulationNorm]:
    """Return this package's norms with running statistics by name, in the order of the modules."""
    return {name: part for name, part in model.named_modules() if isinstance(part, PopulationNorm)}


class BinSums:
    """Sums, in fp64 on the CPU, of the moments of batches by bin; a batch weighs by its tokens."""

    def __init__(self) -> None:
        self._sums: Optional[Tensor] = None  # (G, 1 + 3 C): n, n mean, n mean^2, n var

    def add(self, batch: BinMoments) -> None:
        """Add the statistics of a batch's bins."""
        mean, var, n = (part.double().cpu() for part in batch)
        weighted = [n.unsqueeze(1) * part for part in (mean, mean.square(), var)]
        sums = torch.cat([n.unsqueeze(1), *weighted], 1)
        self._sums = sums if self._sums is None else self._sums + sums

    def estimate(self, estimate: str) -> BinMoments:
        """Return the statistics of every bin.

        ``mean-of-batches``: the mean of batch means and of batch variances; ``pooled``: mean and
        variance of all tokens, larger by the variance of the batch means.
        """
        assert self._sums is not None
        n, sums = self._sums[:, 0], self._sums[:, 1:]
        mean, square, var = (sums / n.clamp(min=1).unsqueeze(1)).chunk(3, 1)
        if estimate == "pooled":
            var = var + (square - mean.square()).clamp(min=0)
        return BinMoments(mean, var, n)


@dataclass(frozen=True)
class LayerMoments:
    """Batch statistics of one layer, in fp64 on the CPU.

    Attributes:
        mean: ``(batches, C)``; 0 for a norm that divides by a quadratic mean.
        var: ``(batches, C)``, biased; there the mean of squares.
        count: ``(batches,)``, real tokens (for images: positions).
        running: the norm's running mean and variance meanwhile, each ``(C,)``; ``None`` = none.
        length: ``(batches,)``, the mean length of a token's sentence; ``None`` where there are no
            sentences.
        bins: the same statistics by bins of sentence lengths, of a norm that has bins.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    running: Optional[tuple[Tensor, Tensor]] = None
    length: Optional[Tensor] = None
    bins: Optional[BinSums] = None


def _running(norm: nn.Module) -> Optional[tuple[Tensor, Tensor]]:
    """Return copies of the norm's running mean and variance, where it has any.

    torch's norms keep the unbiased variance, larger than the biased one by ``n / (n - 1)``.
    """
    running = None
    if isinstance(norm, BatchNorm):
        running = norm.population.get()
    elif isinstance(norm, TorchBatchNorm) and norm.running_mean is not None:
        assert norm.running_var is not None
        running = norm.running_mean, norm.running_var
    if running is None:
        return None
    mean, var = (value.cpu().double().clone() for value in running)
    return mean, var


@contextmanager
def measuring(model: nn.Module, dropout: bool = False) -> Iterator[None]:
    """Let all norms use batch statistics without moving anything; restore modes and RNG.

    Raises:
        ValueError: for lazy norms that do not know their number of channels yet, SyncBatchNorm of
            a group of processes, and nn.DataParallel.
    """
    if any(isinstance(part, nn.DataParallel) for part in model.modules()):
        raise ValueError("Threads of nn.DataParallel cannot be measured: give its `.module`.")
    for name, norm in batch_norms(model).items():
        if getattr(norm, "process_group", None) is not None:
            raise ValueError(
                f"`{name}` takes its statistics over a group of processes. What can be measured is "
                "those over all of them: set its `process_group` to None."
            )
        if any(map(is_lazy, (*norm.parameters(), *norm.buffers()))):
            raise ValueError(f"`{name}` is a lazy norm: run the model once before it is measured.")
    modes = {module: module.training for module in model.modules()}
    # In training mode other modules move theirs, too, such as instance and spectral norms.
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if dropout else []
    tracking = [
        norm
        for norm in batch_norms(model).values()
        if isinstance(norm, TorchBatchNorm) and norm.track_running_stats
    ]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.train(dropout)
        for norm in (*population_norms(model).values(), *batch_norms(model).values()):
            norm.train()
        for norm in tracking:  # torch's norms then leave their running statistics alone
            norm.track_running_stats = False
        # What was compiled before does not notice hooks, nor what is compiled here their absence.
        compiles = "torch._dynamo" in sys.modules  # which take seconds to import
        eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
        with torch.random.fork_rng(devices), freeze_statistics(), torch.no_grad(), eager:
            yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@contextmanager
def _record_all(norms: Iterable[nn.Module]) -> Iterator[list[Record]]:
    """Collect the moments of every forward: ours record them, torch's need a hook."""

    def record(norm: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        (x,) = args or named.values()
        x = x.movedim(1, -1)  # (N, C, ...) -> (N, ..., C)
        rows = x.reshape(-1, x.shape[-1]).to(torch.promote_types(x.dtype, torch.float32))
        sync = isinstance(norm, nn.SyncBatchNorm)
        records.append(Record(norm, batch_moments(rows, sync), None))  # of no sentences

    torchs = [norm for norm in norms if isinstance(norm, TorchBatchNorm)]
    hooks = [norm.register_forward_pre_hook(record, with_kwargs=True) for norm in torchs]
    try:
        with record_moments() as records:
            yield records
    finally:
        for hook in hooks:
            hook.remove()


def _lengths(record: Record) -> Tensor:
    """Return the sums of this process's sentence lengths and of their squares, ``(2,)``."""
    lengths = record.lengths
    if lengths is None:
        return torch.zeros(2)
    return torch.stack([lengths.sum(), lengths.square().sum()])


def _mean_length(lengths: Tensor, norm: nn.Module) -> Optional[Tensor]:
    """Return each batch's ``sum(l^2) / sum(l)``, over all processes that share it."""
    if isinstance(norm, PopulationNorm):
        lengths = all_reduce_sum(lengths.to(next(norm.buffers()).device), norm.sync).cpu()
    return None if (lengths[:, 0] == 0).any() else lengths[:, 1] / lengths[:, 0]


def collect_moments(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = call,
    dropout: bool = False,
    norms: Optional[Mapping[str, nn.Module]] = None,
) -> dict[str, LayerMoments]:
    """Run ``forward(model, batch)`` over batches and return each layer's batch statistics.

    All norms normalise with batch statistics, as in training (paper, Eq. 4), so that nothing
    here depends on the population statistics: one pass serves to estimate them and to measure
    against them. Modes, torch's random number generators and running statistics are left as
    they were. Memory: 16 bytes per batch, layer and channel.

    Args:
        model: any module with batch norms, this package's or torch's own.
        batches: what ``forward`` takes.
        forward: runs the model on a batch; without it ``model(batch)``.
        dropout: leave dropout (and all else that training mode means) on.
        norms: by name, those to report; ``None`` = all batch norms.

    Returns:
        Moments by layer name, in the order in which layers run. Batches in which a layer saw
        no real token, or did not run, are left out of that layer.

    Raises:
        ValueError: for models that :func:`measuring` refuses.
    """
    norms = batch_norms(model) if norms is None else norms
    names = {norm: name for name, norm in norms.items()}
    seen: dict[str, list[tuple[Tensor, ...]]] = {}
    order: list[str] = []  # of a batch in which most layers ran: LayerDrop may leave some out
    bins: dict[str, BinSums] = {}
    with measuring(model, dropout):
        for batch in batches:
            with _record_all(names) as records:
                forward(model, batch)
            records = [record for record in records if record.norm in names]
            order = max(order, [names[record.norm] for record in records], key=len)
            for record in records:
                name, (mean, var, n, *_) = names[record.norm], record.moments
                parts = mean, var, n, _lengths(record)
                seen.setdefault(name, []).append(tuple(part.cpu() for part in parts))
                if record.moments.bins is not None:
                    bins.setdefault(name, BinSums()).add(record.moments.bins)
    layers = {}
    for name in dict.fromkeys((*order, *seen)):
        rows = [row for row in seen[name] if row[2] > 0]
        if rows:
            columns = (torch.stack(column).double() for column in zip(*rows, strict=True))
            mean, var, count, lengths = columns
            running, length = _running(norms[name]), _mean_length(lengths, norms[name])
            layers[name] = LayerMoments(mean, var, count, running, length, bins.get(name))
    return layers
