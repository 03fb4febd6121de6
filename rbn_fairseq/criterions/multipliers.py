"""A multiplier for every batch norm and statistic: the penalty as a constraint."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rbn_fairseq.diagnostics import batch_norms
from rbn_fairseq.norms import BatchNorm, Gap
from rbn_fairseq.norms.moments import mean_over_processes

__all__ = ["SMOOTHING", "START", "Multipliers"]

#: Weight of an update's squared gaps in the smoothed ones.
SMOOTHING = 0.05
#: No gap is seen before so many times 1 / momentum updates: less than a hundredth of where running
#: statistics began is then left in them (with LayerDrop more, as layers were dropped).
START = 5


class Multipliers:
    """Holds every batch norm's gap below a target (paper, Eq. 6 and 7), by dual ascent.

    For every batch norm and for mean and standard deviation alike, with the gap h, TID's summand
    against the running statistics (``relative_gaps``), and the target t, the constraint is
    ``E h^2 <= t^2``, and the penalty per unit of the sample size the sum of

        min(lambda, cap t^2 / s^2) (h / t)^2

    so that no constraint costs more than the cap on average over batches, however far out of
    reach. With every update

        s^2    <- (1 - SMOOTHING) s^2 + SMOOTHING h^2     (the first h^2 takes its place)
        lambda <- clip(lambda + step min(s^2 / t^2 - 1, 1), 0, cap)

    where h^2 is the mean over the update's micro-batches on all processes. Up as down, a
    multiplier moves by at most one step. A batch norm that LayerDrop dropped from all of them is
    left as it is, and so are batches without real tokens or with statistics that are not finite.
    All starts at lambda = 0, and stays there until the running statistics have left where they
    began (``start``). Nothing waits for the GPU.

    Args:
        model: whose batch norms.
        target: t of mean and of standard deviation, fractions.
        step, cap: see above.

    Attributes:
        names: of the batch norms.
        start: update from which on gaps are to be observed.
    """

    def __init__(
        self, model: nn.Module, target: tuple[float, float], step: float, cap: float
    ) -> None:
        norms = batch_norms(model)
        self.names = list(norms)
        momenta = [norm.options.momentum for norm in norms.values() if isinstance(norm, BatchNorm)]
        self.start = START / min(momenta)
        numbers = torch.arange(len(norms)).unbind()
        self._numbers = dict(zip(norms.values(), numbers, strict=True))
        self._step, self._cap = step, cap
        self._bounds = torch.tensor(target).square()
        self._values = torch.zeros(len(norms), 2)  # mean, standard deviation
        self._smoothed = torch.full_like(self._values, math.nan)  # no gap was seen yet
        self._sums = torch.zeros(len(norms), 3)  # of both squared gaps; the number of batches

    def to(self, device: torch.device) -> None:
        """Move to the device of the model."""
        for name in ("_bounds", "_values", "_smoothed", "_sums"):
            setattr(self, name, getattr(self, name).to(device))
        self._numbers = {norm: number.to(device) for norm, number in self._numbers.items()}

    def _index(self, gaps: Sequence[Gap]) -> Tensor:
        return torch.stack([self._numbers[gap.norm] for gap in gaps])

    def penalty(self, gaps: Sequence[Gap], squares: Tensor) -> Tensor:
        """Return the penalty of one forward per unit of the sample size.

        Args:
            gaps: at least one.
            squares: theirs, of ``relative_gaps``, ``(gaps, 2)``.
        """
        weights = self._values.fmin(self._cap * self._bounds / self._smoothed)  # NaN: none yet
        return (weights[self._index(gaps)] * squares / self._bounds).sum()

    @torch.no_grad()
    def observe(self, gaps: Sequence[Gap], squares: Tensor) -> None:
        """Let the gaps of one forward enter the update's mean; arguments as of ``penalty``."""
        counts = torch.stack([gap.count for gap in gaps])
        good = (counts > 0) & squares.isfinite().all(1)
        rows = torch.cat([squares, torch.ones_like(squares[:, :1])], 1)  # (gaps, 3)
        rows = torch.where(good[:, None], rows, 0.0).to(self._sums.dtype)
        self._sums.index_add_(0, self._index(gaps), rows)

    def forget(self) -> None:
        """Leave the gaps out that were seen since the last step: there will be no update."""
        self._sums.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Step after an update; on all processes alike, by one small collective."""
        mean_over_processes([self._sums])
        sums, count = self._sums.split([2, 1], 1)
        seen = count > 0
        squares = sums / torch.where(seen, count, 1.0)
        smoothed = self._smoothed.lerp(squares, SMOOTHING)
        smoothed = torch.where(self._smoothed.isnan(), squares, smoothed)
        excess = (smoothed / self._bounds - 1).clamp(max=1)
        values = (self._values + self._step * excess).clamp(0.0, self._cap)
        self._smoothed = torch.where(seen, smoothed, self._smoothed)
        self._values = torch.where(seen, values, self._values)
        self.forget()

    def records(self) -> list[dict[str, Any]]:
        """Return for every batch norm its multipliers and smoothed gaps s, fractions; or ``None``.

        ``mean_multiplier``, ``std_multiplier``, ``mean_gap``, ``std_gap``, beside ``layer``.
        """
        return [
            {"layer": layer, "mean_multiplier": mean, "std_multiplier": std}
            | {
                name: None if math.isnan(square) else math.sqrt(square)
                for name, square in zip(("mean_gap", "std_gap"), squares, strict=True)
            }
            for layer, (mean, std, *squares) in self.state_dict().items()
        ]

    def state_dict(self) -> dict[str, list[float]]:
        """Return both lambdas and both s^2 by batch norm; between updates there is no more."""
        rows = torch.cat([self._values, self._smoothed], 1).tolist()
        return dict(zip(self.names, rows, strict=True))

    def load_state_dict(self, state: Mapping[str, list[float]]) -> list[str]:
        """Read them; return the batch norms that have none there, which start at 0."""
        start = [0.0, 0.0, math.nan, math.nan]
        rows = torch.tensor([state.get(name, start) for name in self.names])
        self._values, self._smoothed = rows.to(self._values).split(2, 1)
        return [name for name in self.names if name not in state]
