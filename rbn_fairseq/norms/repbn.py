"""Re-parameterised batch normalisation: batch norm and a part of its input."""

from dataclasses import dataclass
from typing import ClassVar, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.batch import BatchNorm
from rbn_fairseq.norms.moments import Moments
from rbn_fairseq.norms.options import OF_NEW, NormOptions, option
from rbn_fairseq.norms.population import Population
from rbn_fairseq.norms.tokens import BatchLayout

__all__ = ["RepBatchNorm", "RepBatchNormOptions"]


@dataclass(frozen=True)
class RepBatchNormOptions(NormOptions, norm="repbn"):
    """Parameters of ``repbn``; the momentum is the one that the authors' code leaves at torch's."""

    momentum: float = option(0.1, OF_NEW, range="(0, 1]")
    eps: float = option(1e-5, "added to the variance", range="(0, inf)")
    layer_end: int = option(
        0,
        "updates in which layer norm gives way, linearly, to this norm (PRepBN), no more than the "
        "training has; evaluation never has it, so that before this update a validation loss says "
        "little; 0 = no layer norm (RepBN)",
        range="[0, inf)",
    )

    clamp: ClassVar[bool] = False


class RepBatchNorm(BatchNorm):
    """RepBN and PRepBN (Guo et al., 2024, arXiv:2405.11582) that see no padding.

    RepBN: ``y = BN(x) + eta x``, with one learnt number eta, 1 at first. In evaluation that is one
    multiply-add, with eta beside batch norm's scale.

    PRepBN, with ``layer_end`` N: in training ``lambda LN(x) + (1 - lambda) RepBN(x)``, after u
    updates with ``lambda = max(0, 1 - u / N)``; LN has a gain and a bias of its own. Evaluation is
    RepBN alone, whatever u, and so is training mode while statistics are frozen, as for TID and
    recalibration. fairseq tells the number of updates; elsewhere call :meth:`set_num_updates`, or
    training is LN. (The authors' code counts forwards, which differ with ``--update-freq``.)

    All else, from the care for padding to synchronisation, is as in :class:`BatchNorm`.
    """

    name = "repbn"
    summary = "as batch, plus a learnt part of the input; may begin as layer"
    source = "Guo et al., 2024, SLAB"
    options_type = RepBatchNormOptions
    schedule = ("layer_end",)
    must_end = True
    options: RepBatchNormOptions  # type: ignore[assignment]

    def __init__(
        self, channels: int, options: Optional[RepBatchNormOptions] = None, sync: bool = False
    ) -> None:
        options = options or self.options_type()
        population = Population(channels, options.momentum)
        super().__init__(channels, options, sync, population)  # type: ignore[arg-type]
        self.eta = nn.Parameter(torch.ones(1))
        self.repeatable = not options.layer_end  # repeated, it is frozen, without its layer norm
        if options.layer_end:
            self.layer_weight = nn.Parameter(torch.ones(channels))
            self.layer_bias = nn.Parameter(torch.zeros(channels))

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        part = self._layer_part()
        if not part:
            return super()._train(rows, layout)
        x = rows.to(torch.promote_types(rows.dtype, torch.float32))
        weight, bias = (part * p.to(x.dtype) for p in (self.layer_weight, self.layer_bias))
        layer = F.layer_norm(x, weight.shape, weight, bias, self.options.eps)
        return super()._train(x, layout).add_(layer).to(rows.dtype)

    def _layer_part(self) -> float:
        """Return the weight of layer norm: 0 behind the schedule and where it is measured."""
        end = self.options.layer_end
        return 0.0 if self._update >= end or scope.frozen.get() else 1 - self._update / end

    def _affine(self, batch: Moments) -> tuple[Tensor, Tensor]:
        part = self._layer_part()
        if not part:
            return self.weight, self.bias
        weight, bias = ((1 - part) * p.to(batch.var.dtype) for p in (self.weight, self.bias))
        return weight, bias

    def _input_part(self) -> Tensor:
        if not self.options.layer_end:
            return self.eta
        # DistributedDataParallel wants a gradient of every parameter, also behind the schedule.
        dtype = torch.promote_types(self.eta.dtype, torch.float32)
        nothing = 0 * (self.layer_weight + self.layer_bias).to(dtype).sum()
        return (1 - self._layer_part()) * self.eta.to(dtype) + nothing

    def _map(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = super()._map(mean, var)
        return scale + self.eta.to(scale.dtype), shift
