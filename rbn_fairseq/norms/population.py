"""Population statistics: running statistics, by which inference normalises."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Optional, Self, TypeVar

import torch
from torch import Tensor, nn

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.lengths import LengthBins, neighbours
from rbn_fairseq.norms.moments import BinMoments, Moments, bin_moments, join_processes
from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.normalise import multiply_add
from rbn_fairseq.norms.options import NormOptions
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, on_rows, sentences_of

__all__ = [
    "FullPrecision", "Population", "PopulationByLength", "PopulationNorm", "RunningStatistics",
    "split_statistics",
]  # fmt: skip


class FullPrecision(nn.Module):
    """A module whose buffers are fp32 (or fp64), also where the model is in half precision."""

    def register_buffer(self, name: str, tensor: Optional[Tensor], persistent: bool = True) -> None:
        """Register a buffer, which torch's default dtype may have made a half-precision one."""
        if tensor is not None:
            tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        super().register_buffer(name, tensor, persistent)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._apply(lambda tensor: tensor)  # with assign=True buffers are those of the state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` and the like: statistics in half precision overflow at 65504, and with a small
        # momentum they stop moving, so only the device follows.
        def at_least_fp32(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            dtype = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == dtype else buffer.to(moved.device, dtype)

        super()._apply(at_least_fp32, recurse)  # type: ignore[no-untyped-call]
        return self


def _largest(values: Tensor) -> Tensor:
    """Return the largest magnitude, 0-dim; NaN if any value is."""
    return torch.linalg.vector_norm(values, math.inf)  # type: ignore[no-any-return]


class RunningStatistics(FullPrecision):
    """Buffers that move with the batches of training.

    They are float, so that averaging tools and exponential moving averages of a model can treat
    them like weights; they stay fp32 (or fp64) when the model is cast to half precision; and they
    are changed in place, so that references to them stay good.

    Attributes:
        by_length: whether they are kept for bins of sentence lengths, so that the norm has to know
            which sentence a row is of.
    """

    by_length: ClassVar[bool] = False

    @torch.no_grad()
    def replace_where(self, good: Tensor, **new: Tensor) -> None:
        """Replace buffers by name where ``good`` (0-dim) is true, and the new values are finite.

        The condition is evaluated on the device: no host synchronisation.
        """
        largest = _largest(torch.cat([value.reshape(-1) for value in new.values()]))
        good = good & (largest < math.inf)
        for name, value in new.items():
            buffer = getattr(self, name)
            torch.where(good, value.to(buffer.dtype), buffer, out=buffer)

    def moving(self) -> list[Tensor]:
        """Return the buffers that batches move: what processes have their mean of."""
        return list(self.buffers())

    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace what evaluation normalises with, in place.

        Args:
            mean: ``(C,)``.
            var: ``(C,)``.
            bins: the same by bins of sentence lengths; read where the statistics are by length.
        """
        raise NotImplementedError


class Population(RunningStatistics):
    """Running mean and biased variance of every channel (paper, Eq. 3).

    Args:
        channels: number of channels C.
        momentum: weight of the new value: ``running <- (1 - momentum) running + momentum new``.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def get(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each ``(C,)``; not copies."""
        return self.running_mean, self.running_var

    def expected(self, layout: Optional[BatchLayout], sync: bool) -> tuple[Tensor, Tensor]:
        """Return mean and variance that a batch is expected to have, each ``(C,)``; copies.

        Args:
            layout: the batch's sentences; read where the statistics are by length.
            sync: of the sentences of all processes.
        """
        mean, var = self.get()
        return mean.clone(), var.clone()

    def describe(
        self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout], sync: bool
    ) -> Moments:
        """Return a batch's moments with all that :meth:`update` reads."""
        return batch

    def update(self, batch: Moments) -> None:
        """Move towards the statistics of a batch, unless it is empty or not finite."""
        mean, var = self.running_mean, self.running_var
        new_mean, new_var = batch.mean.detach().to(mean.dtype), batch.var.detach().to(var.dtype)
        if not var.is_cpu:  # a look at the values would wait for them
            self.replace_where(
                batch.n > 0,
                running_mean=mean.lerp(new_mean, self.momentum),
                running_var=var.lerp(new_var, self.momentum),
            )
        elif batch.n and _largest(new_mean) < math.inf and _largest(new_var) < math.inf:
            mean.lerp_(new_mean, self.momentum)
            var.lerp_(new_var, self.momentum)

    @torch.no_grad()
    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace the statistics, in place, as in :meth:`RunningStatistics.set`."""
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)


class PopulationByLength(Population):
    """Running mean and variance of every channel, and the same for each bin of sentence lengths.

    A bin keeps what it has seen as decayed sums: with ``p`` the part of a batch's tokens that is in
    the bin, m the momentum,

        w <- (1 - m) w + m p,    s <- (1 - m) s + m p mean,    mean = s / w,

    and likewise for the variance. So the first value replaces, a bin that every batch meets moves
    by about m, and one that is rarely met by more, as its old value is older. Below w = m, what one
    batch brings, nothing decays: a bin met never again keeps its value, no batch moves one by more
    than about a half, and a handful of tokens does not displace it. Where each batch is in one of
    G bins and m is 0.05, a bin is a mean of some 20 / 10 / 5 / 3 batches for G = 2 / 4 / 8 / 16 and
    more. Sums, not means, are kept because all that averages buffers, over processes or
    checkpoints, then weighs by what was seen.

    Until :meth:`set_bins` all lengths are in one bin.

    Args:
        channels: number of channels C.
        momentum: m.
        bins: number of bins G.

    Attributes:
        edges: ``(G + 1,)``, see :class:`LengthBins`; 0 until they are set.
        centres: ``(G,)``.
        bin_weight: w, ``(G,)``; 0 for a bin that has seen nothing.
        bin_mean, bin_var: the sums s, ``(G, C)``.
    """

    by_length = True
    edges: Tensor
    centres: Tensor
    bin_weight: Tensor
    bin_mean: Tensor
    bin_var: Tensor

    def __init__(self, channels: int, momentum: float, bins: int) -> None:
        super().__init__(channels, momentum)
        self.register_buffer("edges", torch.zeros(bins + 1))
        self.register_buffer("centres", torch.zeros(bins))
        self.register_buffer("bin_weight", torch.zeros(bins))
        self.register_buffer("bin_mean", torch.zeros(bins, channels))
        self.register_buffer("bin_var", torch.zeros(bins, channels))

    @property
    def bins(self) -> int:
        """Number of bins G."""
        return len(self.centres)

    @torch.no_grad()
    def set_bins(self, bins: LengthBins) -> None:
        """Say where bins begin and end, in place; what they have seen is forgotten."""
        self.edges.copy_(torch.from_numpy(bins.edges))
        self.centres.copy_(torch.from_numpy(bins.centres))
        for sums in (self.bin_weight, self.bin_mean, self.bin_var):
            sums.zero_()

    def moving(self) -> list[Tensor]:
        """Return what batches move: not where bins are, which a mean would round."""
        where = {id(self.edges), id(self.centres)}
        return [buffer for buffer in self.buffers() if id(buffer) not in where]

    @torch.no_grad()
    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace the statistics, in place; what the bins have seen where ``bins`` are given."""
        super().set(mean, var)
        if bins is None:
            return
        weight = bins.n / bins.n.sum()
        self.bin_weight.copy_(weight)
        self.bin_mean.copy_(bins.mean * weight.unsqueeze(1))
        self.bin_var.copy_(bins.var * weight.unsqueeze(1))

    def by_bin(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of every bin, ``(G, C)``; those of all for one without any."""
        weight = self.bin_weight.unsqueeze(1)
        some = weight > 0
        by = weight.where(some, 1)
        return (
            torch.where(some, self.bin_mean / by, self.running_mean),
            torch.where(some, self.bin_var / by, self.running_var),
        )

    @torch.no_grad()
    def look_up(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance for sentences, each ``(B, C)``.

        Between the centres of two bins both are interpolated; beyond the outer centres they are
        the outer bins'.

        Args:
            lengths: real tokens of each sentence, ``(B,)``.
        """
        mean, var = self.by_bin()
        lower, upper, share = neighbours(lengths, self.centres)
        return mean[lower].lerp(mean[upper], share), var[lower].lerp(var[upper], share)

    @torch.no_grad()
    def expected(self, layout: Optional[BatchLayout], sync: bool) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each ``(C,)``, of a batch of sentences of these lengths.

        Of its tokens, each distributed as its sentence's length says: the variance is that within
        sentences and that between their means (the law of total variance).

        Args:
            layout: the batch's sentences.
            sync: of the sentences of all processes.
        """
        lengths = sentences_of(layout).lengths
        mean, var = self.look_up(lengths)
        count = lengths.sum().to(mean.dtype)
        part = (lengths / count.clamp(min=1)).unsqueeze(1)  # (B, 1)
        joint = (part * mean).sum(0)
        spread = (part * (var + (mean - joint).square())).sum(0)
        joint, spread, count, *_ = join_processes(joint, spread, count, sync)
        none = count == 0
        return joint.where(~none, self.running_mean), spread.where(~none, self.running_var)

    @torch.no_grad()
    def describe(
        self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout], sync: bool
    ) -> Moments:
        """Return a batch's moments with those by bin."""
        bins = bin_moments(batch, rows, sentences_of(layout), self.edges[1:-1], sync)
        return batch._replace(bins=bins)

    @torch.no_grad()
    def update(self, batch: Moments) -> None:
        """Move towards the statistics of a batch and its bins, unless empty or not finite."""
        assert batch.bins is not None
        bins, mean, var = batch.bins, self.running_mean, self.running_var
        weight = self.bin_weight.unsqueeze(1)
        part = self.momentum * (bins.n / batch.n.clamp(min=1)).to(mean.dtype).unsqueeze(1)
        decay = 1 - self.momentum * (weight >= self.momentum).to(weight.dtype)
        self.replace_where(
            batch.n > 0,
            running_mean=mean.lerp(batch.mean.to(mean.dtype), self.momentum),
            running_var=var.lerp(batch.var.to(var.dtype), self.momentum),
            bin_weight=(decay * weight + part).squeeze(1),
            bin_mean=decay * self.bin_mean + part * bins.mean.to(mean.dtype),
            bin_var=decay * self.bin_var + part * bins.var.to(var.dtype),
        )


class PopulationNorm(AffineNorm):
    """A norm whose training uses the batch, and whose evaluation uses running statistics.

    Evaluation is one multiply-add per element, by a scale and shift that every call computes;
    after :meth:`make_generation_fast_`, the first.

    A subclass has ``_train(rows, layout)``, from rows ``(N, C)`` of real tokens and where the
    sentences lie in them (``None`` where that is not known), and ``affine_map()``.

    Args:
        channels: number of channels C.
        options: its parameters; ``None`` = the defaults.
        sync: use the statistics of all processes together (counts may differ).
        population: the running statistics.

    Attributes:
        population, sync: as given.
        by_length: whether the statistics are by sentence length, so that evaluation, too, asks
            which sentence a row is of.
        repeatable: whether a forward in training gives the same when it is repeated with frozen
            statistics that have moved.
        schedule: names of the options that say at which updates the norm's schedule ends.
        must_end: whether evaluation is only right behind that end, so that a training which does
            not reach it is refused.
    """

    repeatable: bool = False
    schedule: ClassVar[tuple[str, ...]] = ()
    must_end: ClassVar[bool] = False

    population: RunningStatistics
    _update = 0
    _caches_map = False
    _cached_map: Optional[tuple[Tensor, Tensor]] = None

    def __init__(
        self,
        channels: int,
        options: Optional[NormOptions],
        sync: bool,
        population: RunningStatistics,
    ) -> None:
        super().__init__(channels, options)
        self.sync = sync
        self.population = population
        self.by_length = population.by_length  # a look at a submodule takes long

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build the norm of a place."""
        return cls(place.channels, options, place.sync)  # type: ignore[call-arg]

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x``; same shape and dtype out.

        Args:
            x: rows ``(N, C)`` of real tokens; or with padding ``(T, B, C)`` or ``(..., C)``.
            tokens: the layout of the rows; or which of ``x``'s positions are real tokens. ``None``
                = all.

        Raises:
            ValueError: if ``tokens`` describes another shape than ``x``'s.
        """
        if self.training and torch.compiler.is_compiling():
            # What moves statistics and is recorded breaks graphs, and not all survive it.
            from rbn_fairseq.norms.uncompiled import uncompiled

            return uncompiled(on_rows, self._train, x, tokens, self.by_length)
        if self.training:
            return on_rows(self._train, x, tokens, self.by_length)
        if self.by_length:
            return on_rows(self._evaluate_by_length, x, tokens, by_sentence=True)
        if tokens is not None:
            tokens.check(x)
        return self._evaluate(x)

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift, each ``(C,)``: evaluation is ``x * scale + shift``."""
        raise NotImplementedError

    def set_num_updates(self, num_updates: int) -> None:
        """Take the number of updates so far; fairseq calls this before every training step."""
        self._update = num_updates

    def _record(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        lengths = None if layout is None else layout.lengths
        for recorder in scope.moment_recorders.get():
            recorder.append(scope.Record(self, batch, lengths))

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{super().extra_repr()}, sync={self.sync}"

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        raise NotImplementedError

    def _evaluate_by_length(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        raise NotImplementedError

    def make_generation_fast_(self, **_: Any) -> None:
        """Compute scale and shift of evaluation once, where no gradient is wanted.

        fairseq calls this before it generates: parameters and statistics do not change any more
        (but by training mode, loading a state, casts, and moves to a device).
        """
        self._caches_map = True

    def _evaluate(self, x: Tensor) -> Tensor:
        cuda = x.is_cuda and not torch.compiler.is_compiling()
        captured = cuda and torch.cuda.is_current_stream_capturing()
        if not self._caches_map or torch.is_grad_enabled() or captured:
            return multiply_add(x, *self.affine_map())
        if self._cached_map is None:
            self._cached_map = self.affine_map()
        return multiply_add(x, *self._cached_map)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; training, which changes the map, drops the cached one."""
        if mode:
            self._cached_map = None
        return super().train(mode)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._cached_map = None
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._cached_map = None
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]


_Value = TypeVar("_Value")


def split_statistics(state: Mapping[str, _Value]) -> tuple[dict[str, _Value], dict[str, _Value]]:
    """Return what is no running statistic in a state dict, and what is."""
    statistics = {
        name: value for name, value in state.items() if name.split(".")[-2:-1] == ["population"]
    }
    return {name: value for name, value in state.items() if name not in statistics}, statistics
