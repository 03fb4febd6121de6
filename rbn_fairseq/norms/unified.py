"""Unified normalisation: each channel by a geometric mean of the last batches' statistics."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.quadratic import QuadraticMean, QuadraticNorm

__all__ = ["UnifiedNorm", "UnifiedNormOptions"]


@dataclass(frozen=True)
class UnifiedNormOptions(NormOptions, norm="un"):
    """Parameters of ``un``; the defaults are those of the authors' code for translation."""

    window: int = option(4, "number of batches whose statistics are averaged", range="[2, inf)")
    momentum: float = option(
        0.1, "weight of the new value in the running statistics", range="(0, 1]"
    )
    eps: float = option(1e-5, "added to the quadratic mean", range="(0, inf)")
    warmup: int = option(
        4_000,
        "up to this update, and until the window is full, each batch has its own statistics",
        range="[0, inf)",
    )
    r_max: float = option(
        5.0, "the gradient's correction is clipped to [1 / r_max, r_max]", range="[1, inf)"
    )
    r_start: int = option(4_000, "updates without that correction", at_least="warmup")


class UnifiedNorm(QuadraticNorm):
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
    they switch off for text, is left out.) Schedules follow the number of updates, which fairseq
    tells; elsewhere call :meth:`set_num_updates`, or they stay at their start. Micro-batches of one
    update share a slot: it keeps the last one's. All else is as in :class:`QuadraticNorm`.

    Args:
        channels: number of channels C.
        options: window, momentum, eps, warm-up, limit and start of the correction.
        sync: use the statistics of all processes together.
    """

    name = "un"
    summary = "each channel by the geometric mean of the last batches' quadratic means"
    source = "Yang et al., 2022, Unified Normalization"
    options_type = UnifiedNormOptions
    schedule = ("window", "warmup", "r_start")
    corrects_forward = False
    options: UnifiedNormOptions

    def __init__(
        self, channels: int, options: Optional[UnifiedNormOptions] = None, sync: bool = False
    ) -> None:
        options = options or UnifiedNormOptions()
        window = options.window, channels
        population = QuadraticMean(
            channels,
            square_window=torch.ones(window),
            gradient_window=torch.zeros(window),
            running_gradient=torch.zeros(channels),
        )
        super().__init__(channels, options, sync, population)

    def _divide(
        self, rows: Tensor, square: Tensor, count: Tensor, counted: bool, frozen: bool
    ) -> Tensor:
        options, step = self.options, self._update + 1
        running = self.population.running_square.to(square.dtype)
        by_batch = step <= options.window or step < options.warmup
        good = (count > 0) & square.isfinite().all()
        divisor, r = square, torch.ones_like(square)
        if not frozen:
            window = self._with_value("square_window", square)
            if not by_batch:
                # With eps: a channel that is 0 in one batch does not make V 0 in the next ones.
                geometric = (window + options.eps).log().mean(0).exp() - options.eps
                divisor = geometric.clamp(min=0)
            if step > options.r_start:
                r = ((divisor + options.eps) / (running + options.eps)).sqrt()
                r = r.clamp(1 / options.r_max, options.r_max)
            moved = running.lerp(divisor, options.momentum)
            self.population.replace_where(good, running_square=moved, square_window=window)

        def gradient(mean: Tensor) -> tuple[Tensor, Tensor]:
            """Smooth the mean; the divisor is the forward's."""
            if frozen:
                return mean, divisor
            running = self.population.get_buffer("running_gradient").to(mean.dtype)
            window = self._with_value("gradient_window", mean)
            moved = running.lerp(mean if by_batch else window.mean(0), options.momentum)
            self.population.replace_where(good, running_gradient=moved, gradient_window=window)
            return self.population.get_buffer("running_gradient").to(mean.dtype), divisor

        return self._normalise(rows, divisor, r, count, counted, gradient)

    def _with_value(self, name: str, value: Tensor) -> Tensor:
        """Return a window with the batch's value in its slot, ``(window, C)``."""
        window = self.population.get_buffer(name).to(value.dtype, copy=True)
        window[(self._update + 1) % self.options.window] = value
        return window
