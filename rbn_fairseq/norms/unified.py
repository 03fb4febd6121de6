"""Unified normalisation: each channel by a geometric mean of the last batches' statistics."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.mabn import MovingAverageBatchNorm, MovingAverageBatchNormOptions
from rbn_fairseq.norms.options import OF_NEW, option

__all__ = ["UnifiedNorm", "UnifiedNormOptions"]


@dataclass(frozen=True)
class UnifiedNormOptions(MovingAverageBatchNormOptions, norm="un"):
    """Parameters of ``un``; the defaults are those of the authors' code for translation."""

    window: int = option(4, "number of batches whose statistics are averaged", range="[2, inf)")
    momentum: float = option(0.1, OF_NEW, range="(0, 1]")
    warmup: int = option(
        4_000,
        "up to this update, and until the window is full, each batch has its own statistics",
        range="[0, inf)",
    )
    r_max: float = option(
        5.0, "the gradient's correction is clipped to [1 / r_max, r_max]", range="[1, inf)"
    )
    r_start: int = option(4_000, "updates without that correction", at_least="warmup")


class UnifiedNorm(MovingAverageBatchNorm):
    """Unified normalisation (Yang et al., 2022, arXiv:2208.01313) that sees no padding.

    As the authors' code has it. Forward: ``y = x / sqrt(V + eps) * weight + bias`` with V the
    geometric mean of the last ``window`` batches' quadratic means, this one's included. Nothing is
    subtracted. Then the running quadratic mean, which evaluation divides by, moves towards V.

    Backward: not the derivative of that. With ``z = x / sqrt(V + eps)``, ``r = clip(sqrt(V + eps)
    / sqrt(running + eps), 1 / r_max, r_max)``, g the gradient that arrives and ``G = g weight r``,
    a running term E moves towards the mean of ``mean(G z)`` over the window's batches, and then
    ``dx = (G - z E) / sqrt(V + eps)``, ``dweight = sum(g r z)``: r is in the backward alone.

    Before update ``warmup`` and until the window is full, V and what E moves towards are the
    batch's own; r is 1 in the first ``r_start`` updates. (The authors' filter of outliers, which
    they switch off for text, is left out.) All else, window and schedules too, is as in
    :class:`MovingAverageBatchNorm`, but no layer behind the norm centres its weights.
    """

    name = "un"
    summary = "each channel by the geometric mean of the last batches' quadratic means"
    source = "Yang et al., 2022, Unified Normalization"
    options_type = UnifiedNormOptions
    corrects_forward = centres_weights = False

    def __init__(
        self, channels: int, options: Optional[UnifiedNormOptions] = None, sync: bool = False
    ) -> None:
        super().__init__(channels, options, sync, running_gradient=torch.zeros(channels))

    def _average(self, window: Tensor) -> Tensor:
        # With eps: a channel that is 0 in one batch does not make V 0 in the next ones.
        eps = self.options.eps
        return ((window + eps).log().mean(0).exp() - eps).clamp(min=0)

    def _smooth(self, mean: Tensor, good: Tensor) -> Tensor:
        running = self.population.get_buffer("running_gradient")
        moved = running.lerp(mean.to(running.dtype), self.options.momentum)
        self.population.replace_where(good, running_gradient=moved)
        return self.population.get_buffer("running_gradient").to(mean.dtype)
