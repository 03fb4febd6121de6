"""PowerNorm: each channel by a running quadratic mean, with an approximate backward."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.quadratic import QuadraticMean, QuadraticNorm

__all__ = ["PowerNorm", "PowerNormOptions"]


@dataclass(frozen=True)
class PowerNormOptions(NormOptions, norm="power"):
    """Parameters of ``power``."""

    alpha_forward: float = option(0.9, "weight of the old running quadratic mean", range="[0, 1)")
    alpha_backward: float = option(0.9, "weight of the old running gradient term", range="[0, 1)")
    eps: float = option(1e-5, "added to the quadratic mean", range="(0, inf)")
    warmup: int = option(
        8_000, "updates that normalise by the batch's own quadratic mean", range="[0, inf)"
    )
    backward: str = option(
        "batch",
        "quadratic mean that the gradient is divided by: the `batch`'s, as the authors' code does, "
        "or the `running` one that the forward divided by, as the paper writes",
        choices=("batch", "running"),
    )


class PowerNorm(QuadraticNorm):
    """PowerNorm (Shen et al., 2020, arXiv:2003.07845, Algorithms 1 and 2) that sees no padding.

    Forward: ``y = x / sqrt(psi^2 + eps) * weight + bias`` with the running quadratic mean psi^2
    from before the batch; in the first ``warmup`` updates, with the batch's own. Nothing is
    subtracted. Afterwards psi^2 moves: in the warm-up first as the plain average over updates, and
    always as ``alpha_forward psi^2 + (1 - alpha_forward) mean(x^2)``.

    Backward: not the derivative of that. With ``z`` the normalised input and ``g`` the gradient
    that arrives, times the weight, ``t = g - (1 - alpha_backward) n z`` and ``dx = t / sqrt(mean
    (x^2) + eps)``, or with ``backward=running`` over the forward's divisor; then the running term
    moves, ``n <- n + mean(t z)``.

    Means are over the batch's real tokens (the authors' include padding in the last one). The
    warm-up follows the number of updates, which fairseq tells; elsewhere call
    :meth:`set_num_updates`, or it never ends. All else is as in :class:`QuadraticNorm`.
    """

    name = "power"
    summary = "each channel by a running quadratic mean; an approximate backward"
    source = "Shen et al., 2020, PowerNorm"
    options_type = PowerNormOptions
    schedule = ("warmup",)
    options: PowerNormOptions

    def __init__(
        self, channels: int, options: Optional[PowerNormOptions] = None, sync: bool = False
    ) -> None:
        population = QuadraticMean(channels, running_gradient=torch.zeros(channels))
        super().__init__(channels, options, sync, population)

    def _divide(self, rows: Tensor, square: Tensor, count: Tensor, frozen: bool) -> Tensor:
        running = self.population.running_square.to(square.dtype)
        by_batch = frozen or self._update < self.options.warmup
        divisor = square if by_batch else running.clone()

        def gradient(mean: Tensor) -> tuple[Tensor, Tensor]:
            """Follow Algorithm 2: mean(t z) = mean(g z) - (1 - alpha_backward) n mean(z^2)."""
            term = self.population.get_buffer("running_gradient")
            multiple = (1 - self.options.alpha_backward) * term.to(mean.dtype)
            if not frozen:
                mean = mean - multiple * square / (divisor + self.options.eps)
                good = (count > 0) & square.isfinite().all()
                self.population.replace_where(good, running_gradient=term + mean.to(term.dtype))
            return multiple, square if self.options.backward == "batch" else divisor

        r = torch.ones_like(divisor)
        y = self._normalise(rows, divisor, r, count, gradient)
        if not frozen:
            self._move(square, count)
        return y

    @torch.no_grad()
    def _move(self, square: Tensor, count: Tensor) -> None:
        running, step = self.population.running_square, self._update + 1
        square = square.to(running.dtype)
        if step < self.options.warmup:
            running = running * ((step - 1) / step) + square / step
        moved = self.options.alpha_forward * running + (1 - self.options.alpha_forward) * square
        self.population.replace_where(count > 0, running_square=moved)
