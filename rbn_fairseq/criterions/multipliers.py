"""A multiplier for every batch norm and statistic: the penalty as a constraint."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rbn_fairseq.criterions.gaps import relative_gaps
from rbn_fairseq.diagnostics import batch_norms
from rbn_fairseq.norms import Gap
from rbn_fairseq.norms.moments import mean_over_processes

__all__ = ["SMOOTHING", "Multipliers"]

#: Weight of an update's gaps in the smoothed ones.
SMOOTHING = 0.05


class Multipliers:
    """Holds every batch norm's TID below a target (paper, Eq. 6), by dual ascent.

    For every batch norm and for mean and standard deviation alike, with the gap h, TID's summand
    against the running statistics (:func:`relative_gaps`), and the target t, the penalty per token
    is the sum of ``lambda (h / t)^2``. With every update

        s      <- (1 - SMOOTHING) s + SMOOTHING h     (the first h takes s's place)
        lambda <- clip(lambda + step min(s / t - 1, 1), 0, cap)

    where h is its mean over the update's micro-batches on all processes. Up as down, a multiplier
    moves by at most one step: at the start, while running statistics are on their way from 0 and
    1 to where the batches are, gaps are a hundred times what they will be. A batch norm that
    LayerDrop dropped from all of them is left as it is, and so are batches without real tokens or
    with statistics that are not finite. All starts at lambda = 0. Nothing waits for the GPU.

    Args:
        model: whose batch norms.
        target: t of mean and of standard deviation, fractions.
        step, cap: see above.
    """

    def __init__(
        self, model: nn.Module, target: tuple[float, float], step: float, cap: float
    ) -> None:
        norms = batch_norms(model)
        self.names = list(norms)
        self._numbers = {norm: number for number, norm in enumerate(norms.values())}
        self._step, self._cap = step, cap
        self._bounds = torch.tensor(target)
        self._values = torch.zeros(len(self.names), 2)  # mean, standard deviation
        self._smoothed = torch.full_like(self._values, math.nan)  # no gap was seen yet
        self._sums = torch.zeros(len(self.names), 3)  # of both gaps; the number of batches

    def to(self, device: torch.device) -> None:
        """Move to the device of the model."""
        for name in ("_bounds", "_values", "_smoothed", "_sums"):
            setattr(self, name, getattr(self, name).to(device))

    def penalty(self, gaps: Sequence[Gap]) -> Tensor:
        """Return the penalty per token of one forward; its gaps enter the update's mean."""
        if not gaps:
            return self._values.new_zeros(())
        squares = relative_gaps(gaps)  # (gaps, 2)
        numbers = [self._numbers[gap.norm] for gap in gaps]
        self._observe(numbers, squares, torch.stack([gap.count for gap in gaps]))
        values = torch.stack([self._values[number] for number in numbers])
        return (values * squares / self._bounds.square()).sum()

    @torch.no_grad()
    def _observe(self, numbers: Sequence[int], squares: Tensor, counts: Tensor) -> None:
        good = (counts > 0) & squares.isfinite().all(1)
        rows = torch.cat([squares.sqrt(), torch.ones_like(squares[:, :1])], 1)
        rows = torch.where(good[:, None], rows, 0.0).to(self._sums.dtype)  # (gaps, 3)
        by_norm = list(self._sums.unbind())
        for number, row in zip(numbers, rows.unbind(), strict=True):
            by_norm[number] = by_norm[number] + row
        self._sums = torch.stack(by_norm)

    def forget(self) -> None:
        """Leave the gaps out that were seen since the last step: there will be no update."""
        self._sums = torch.zeros_like(self._sums)

    @torch.no_grad()
    def step(self) -> None:
        """Step after an update; on all processes alike, by one small collective."""
        mean_over_processes([self._sums])
        sums, count = self._sums.split([2, 1], 1)
        seen = count > 0
        gaps = sums / torch.where(seen, count, 1.0)
        smoothed = torch.where(self._smoothed.isnan(), gaps, self._smoothed.lerp(gaps, SMOOTHING))
        excess = (smoothed / self._bounds - 1).clamp(max=1)
        values = self._values + self._step * excess
        self._smoothed = torch.where(seen, smoothed, self._smoothed)
        self._values = torch.where(seen, values.clamp(0.0, self._cap), self._values)
        self.forget()

    def records(self) -> list[dict[str, Any]]:
        """Return for every batch norm its multipliers and smoothed gaps, fractions; or ``None``."""
        names = ("mean_multiplier", "std_multiplier", "mean_tid", "std_tid")
        return [
            {"layer": layer}
            | {k: None if math.isnan(v) else v for k, v in zip(names, values, strict=True)}
            for layer, values in self.state_dict().items()
        ]

    def state_dict(self) -> dict[str, list[float]]:
        """Return multipliers and smoothed gaps by batch norm; they hold nothing in between."""
        rows = torch.cat([self._values, self._smoothed], 1).tolist()
        return dict(zip(self.names, rows, strict=True))

    def load_state_dict(self, state: Mapping[str, list[float]]) -> list[str]:
        """Read them; return the batch norms that have none there, which start at 0."""
        start = [0.0, 0.0, math.nan, math.nan]
        rows = torch.tensor([state.get(name, start) for name in self.names])
        self._values, self._smoothed = rows.to(self._values).split(2, 1)
        return [name for name in self.names if name not in state]
