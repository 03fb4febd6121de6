"""Batch renormalisation: batch norm that training, too, corrects to the running statistics."""

from dataclasses import dataclass
from typing import ClassVar, Optional

import torch
from torch import Tensor

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.batch import BatchNorm
from rbn_fairseq.norms.moments import BinMoments, Moments
from rbn_fairseq.norms.normalise import standard_deviation
from rbn_fairseq.norms.options import OF_NEW, NormOptions, option
from rbn_fairseq.norms.population import Population, RunningStatistics

__all__ = ["BatchRenorm", "BatchRenormOptions"]


@dataclass(frozen=True)
class BatchRenormOptions(NormOptions, norm="renorm"):
    """Parameters of ``renorm``; the defaults are the paper's."""

    momentum: float = option(0.01, OF_NEW, range="(0, 1]")
    eps: float = option(1e-5, "added to the variance", range="(0, inf)")
    r_max: float = option(
        3.0, "the scale's correction is clipped to [1 / r_max, r_max]", range="[1, inf)"
    )
    d_max: float = option(5.0, "the shift's correction is clipped to +- d_max", range="[0, inf)")
    start: int = option(5_000, "updates without correction: plain batch norm", range="[0, inf)")
    r_end: int = option(40_000, "update at which r_max is reached", at_least="start")
    d_end: int = option(25_000, "update at which d_max is reached", at_least="start")

    clamp: ClassVar[bool] = False

    def limits(self, update: int) -> tuple[float, float]:
        """Return ``(r_max, d_max)`` at an update: linear between the schedule's ends."""

        def passed(end: int) -> float:
            if update >= end:
                return 1.0
            return (update - self.start) / (end - self.start) if update > self.start else 0.0

        return 1 + (self.r_max - 1) * passed(self.r_end), self.d_max * passed(self.d_end)


class RunningMeanStd(Population):
    """Running mean and standard deviation: it is the deviation that moves, not the variance.

    Its methods take and return variances, like those of batch norm's population statistics.
    """

    running_std: Tensor

    def __init__(self, channels: int, options: BatchRenormOptions) -> None:
        RunningStatistics.__init__(self)
        self.momentum, self._options = options.momentum, options
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_std", torch.ones(channels))

    def get(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each ``(C,)``: the eps inside the deviation is not in it."""
        var = self.running_std.square() - self._options.eps
        return self.running_mean, var.clamp(min=0)

    @torch.no_grad()
    def update(self, batch: Moments) -> None:
        """Move towards the statistics of a batch, unless it is empty or not finite."""
        mean, std = self.running_mean, self.running_std
        new = standard_deviation(batch.var, self._options.eps, clamp=False)
        self.replace_where(
            batch.n > 0,
            running_mean=mean.lerp(batch.mean.to(mean.dtype), self.momentum),
            running_std=std.lerp(new.to(std.dtype), self.momentum),
        )

    @torch.no_grad()
    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace the statistics, in place, as in :meth:`RunningStatistics.set`."""
        self.running_mean.copy_(mean)
        self.running_std.copy_(standard_deviation(var, self._options.eps, clamp=False))


class BatchRenorm(BatchNorm):
    """Batch renormalisation (Ioffe, 2017, arXiv:1702.03275, Algorithm 1) that sees no padding.

    In training ``y = ((x - mean_B) / std_B * r + d) * weight + bias`` with ``std_B =
    sqrt(var_B + eps)``, ``r = clip(std_B / std, 1 / r_max, r_max)``, ``d = clip((mean_B - mean) /
    std, -d_max, d_max)`` and the running statistics from before the batch's update; no gradient
    flows through r and d. Where nothing is clipped that is evaluation's ``(x - mean) / std *
    weight + bias``. The limits follow the number of updates, which fairseq tells; elsewhere call
    :meth:`set_num_updates`, or they stay at their start. While statistics are frozen in training
    mode, as for TID and recalibration, nothing is corrected.

    All else, from the care for padding to synchronisation, is as in :class:`BatchNorm`.
    """

    name = "renorm"
    summary = "as batch, and corrected to the running statistics in training, within limits"
    source = "Ioffe, 2017, Batch Renormalization"
    options_type = BatchRenormOptions
    schedule = ("r_end", "d_end")
    options: BatchRenormOptions  # type: ignore[assignment]
    population: RunningMeanStd

    def __init__(
        self, channels: int, options: Optional[BatchRenormOptions] = None, sync: bool = False
    ) -> None:
        options = options or self.options_type()
        population = RunningMeanStd(channels, options)
        super().__init__(channels, options, sync, population)  # type: ignore[arg-type]

    @torch.no_grad()
    def _corrections(self, batch: Moments) -> tuple[Tensor, Tensor]:
        r_max, d_max = self.options.limits(self._update)
        mean, std = self.population.running_mean, self.population.running_std
        batch_std = standard_deviation(batch.var, self.options.eps, clamp=False)
        r = (batch_std / std).clamp(1 / r_max, r_max)
        d = ((batch.mean - mean) / std).clamp(-d_max, d_max)
        return r, d

    def _affine(self, batch: Moments) -> tuple[Tensor, Tensor]:
        """Put the corrections into the affine map: (x r + d) w + b = x (r w) + (d w + b)."""
        if scope.frozen.get():
            return self.weight, self.bias
        r, d = self._corrections(batch)
        return self.weight * r, self.bias + self.weight * d
