"""Moving average batch normalisation: a window of batches forward and backward."""

from dataclasses import dataclass
from typing import ClassVar, Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.options import OF_NEW, NormOptions, option
from rbn_fairseq.norms.quadratic import QuadraticMean, QuadraticNorm

__all__ = ["MovingAverageBatchNorm", "MovingAverageBatchNormOptions"]


@dataclass(frozen=True)
class MovingAverageBatchNormOptions(NormOptions, norm="mabn"):
    """Parameters of ``mabn``; the defaults are those of the authors' code."""

    window: int = option(16, "number of batches whose statistics are averaged", range="[1, inf)")
    momentum: float = option(0.02, OF_NEW, range="(0, 1]")
    eps: float = option(1e-5, "added to the quadratic mean", range="(0, inf)")
    warmup: int = option(
        100,
        "up to this update, and until the window is full, each batch has its own statistics",
        range="[0, inf)",
    )
    r_max: float = option(
        5.0, "the scale's correction is clipped to [1 / r_max, r_max]", range="[1, inf)"
    )
    r_start: int = option(1_000, "updates without that correction", at_least="warmup")


class MovingAverageBatchNorm(QuadraticNorm):
    """Moving average batch norm (Yan et al., 2020, arXiv:2001.06838) that sees no padding.

    Forward: ``y = x / sqrt(V + eps) * r * weight + bias`` with V the mean of the last ``window``
    batches' quadratic means, this one's included, and ``r = clip(sqrt(V + eps) / sqrt(running +
    eps), 1 / r_max, r_max)``, through which no gradient flows. Where nothing is clipped that is
    evaluation's ``x / sqrt(running + eps)``. Then the running quadratic mean moves towards V.

    Backward: with ``z = x / sqrt(V + eps)`` and G the gradient that arrives, times weight and r,
    ``dx = (G - z M) / sqrt(V + eps)``, M the mean of ``mean(G z)`` over the window's batches. That
    is the forward's derivative only before update ``warmup`` and until the window is full, when V
    and M are the batch's own; r is 1 in the first ``r_start`` updates. They follow the number of
    updates, which fairseq tells; elsewhere call :meth:`set_num_updates`, or both stay at their
    start. Micro-batches of one update share a slot of the window: it keeps the last one's.

    Nothing is subtracted: the linear layers behind the norm have to centre their weights, which
    :func:`rbn_fairseq.models.linear.centre_weights` sees to. All else is as in
    :class:`QuadraticNorm`.

    Args:
        buffers: what a subclass remembers besides.
    """

    #: Whether linear layers behind it centre their weights.
    centres_weights: ClassVar[bool] = True
    name = "mabn"
    summary = (
        "each channel by the quadratic mean of the last batches, also in the backward; centres the "
        "linear layers behind it"
    )
    source = "Yan et al., 2020, Moving Average Batch Normalization"
    options_type = MovingAverageBatchNormOptions
    schedule = ("window", "warmup", "r_start")
    options: MovingAverageBatchNormOptions

    def __init__(
        self,
        channels: int,
        options: Optional[MovingAverageBatchNormOptions] = None,
        sync: bool = False,
        **buffers: Tensor,
    ) -> None:
        options = options or self.options_type()
        buffers["square_window"] = torch.ones(options.window, channels)
        buffers["gradient_window"] = torch.zeros(options.window, channels)
        population = QuadraticMean(channels, **buffers)
        super().__init__(channels, options, sync, population)

    def _divide(self, rows: Tensor, square: Tensor, count: Tensor, frozen: bool) -> Tensor:
        options, step = self.options, self._update + 1
        running = self.population.running_square
        divisor, r = square, torch.ones_like(square)
        by_batch = frozen or step <= options.window or step < options.warmup
        good = (count > 0) & square.isfinite().all()
        if not frozen:
            window = self._remember("square_window", square, good)
            divisor = divisor if by_batch else self._average(window)
            if step > options.r_start:
                r = ((divisor + options.eps) / (running.to(square.dtype) + options.eps)).sqrt()
                r = r.clamp(1 / options.r_max, options.r_max)
            moved = running.lerp(divisor.to(running.dtype), options.momentum)
            self.population.replace_where(good, running_square=moved)

        def gradient(mean: Tensor) -> tuple[Tensor, Tensor]:
            """Take the mean over the window of batches, or the batch's own, as the forward does."""
            if not frozen:
                finite = good & mean.isfinite().all()
                window = self._remember("gradient_window", mean, finite)
                mean = self._smooth(mean if by_batch else window.mean(0), finite)
            return mean, divisor

        return self._normalise(rows, divisor, r, count, gradient)

    def _average(self, window: Tensor) -> Tensor:
        """Return V of the quadratic means ``(window, C)``."""
        return window.mean(0)

    def _smooth(self, mean: Tensor, good: Tensor) -> Tensor:
        """Return M, given that mean and whether the batch may move what is remembered."""
        return mean

    @torch.no_grad()
    def _remember(self, name: str, value: Tensor, good: Tensor) -> Tensor:
        """Put a batch's value, if it is good, into its slot; return the window ``(window, C)``."""
        window = self.population.get_buffer(name).clone()
        window[(self._update + 1) % self.options.window] = value
        self.population.replace_where(good, **{name: window})
        return self.population.get_buffer(name).to(value.dtype)
