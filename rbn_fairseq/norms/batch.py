"""Batch normalisation over the real tokens of a batch."""

from dataclasses import dataclass, field
from typing import ClassVar, Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms import kernels, scope
from rbn_fairseq.norms.checks import check_rules, positive
from rbn_fairseq.norms.lengths import check_rule
from rbn_fairseq.norms.moments import Moments, batch_moments
from rbn_fairseq.norms.normalise import normalise
from rbn_fairseq.norms.population import PopulationNorm, PopulationStatistics
from rbn_fairseq.norms.tokens import BatchLayout

__all__ = ["BatchNorm", "BatchNormOptions"]


@dataclass(frozen=True)
class BatchNormOptions:
    """Parameters of ``batch``.

    Raises:
        ValueError: if a value is outside its range.
    """

    momentum: float = field(
        default=0.05,
        metadata={"help": "weight of the new value in the running statistics, in (0, 1]"},
    )
    eps: float = field(
        default=1e-5, metadata={"help": "keeps the standard deviation away from 0; positive"}
    )
    eps_mode: str = field(
        default="add",
        metadata={
            "help": "std = sqrt(var + eps) with `add`, sqrt(max(var, eps)) with `clamp`, "
            "as the authors' code does",
            "choices": ("add", "clamp"),
        },
    )
    length_bins: int = field(
        default=1,
        metadata={
            "help": "running statistics for each of so many bins of sentence lengths, in the "
            "encoder; 1 = for all sentences together"
        },
    )
    length_edges: str = field(
        default="quantiles",
        metadata={
            "help": "where those bins end: `quantiles`, as many training sentences in each; or the "
            "edges between them, 10:20:40"
        },
    )

    def __post_init__(self) -> None:
        rules = {
            "momentum": (0 < self.momentum <= 1, "in (0, 1], as the weight of the new value"),
            "eps": positive(self.eps),
            "eps_mode": (self.eps_mode in ("add", "clamp"), "`add` or `clamp`"),
            "length_bins": (self.length_bins >= 1, "at least 1, which is ordinary batch norm"),
        }
        check_rules("batch", self, rules)
        try:
            check_rule(self.length_edges, self.length_bins)
        except ValueError as error:
            raise ValueError(f"`length_edges` (--norm-batch-length-edges): {error}") from None

    def std(self, var: Tensor) -> Tensor:
        """Return the standard deviation that normalises by."""
        return (var + self.eps if self.eps_mode == "add" else var.clamp(min=self.eps)).sqrt()


class BatchNorm(PopulationNorm):
    """Batch norm (Ioffe and Szegedy, 2015; paper, Eqs. 1 to 3) that does not see padding.

    In training, ``y = (x - batch mean) / batch std * weight + bias`` with the statistics of the
    batch's real tokens, and the running statistics move by ``momentum``. In evaluation, the same
    with the running statistics: one multiply-add per element.

    Statistics are biased, two-pass, and accumulated in fp32 whatever the input's dtype. As in
    torch's batch norm, outputs in fp32 are right to about 1e-6 of |mean| / std. A batch
    without any real token is normalised with the running statistics and moves nothing; a batch
    whose statistics are not finite moves nothing.

    Args:
        channels: number of channels C.
        options: momentum, eps, eps mode.
        sync: use the statistics of all processes together (counts may differ).

    Attributes:
        by_kernels: whether the GPU's kernels may train in place of torch's operations. A subclass
            whose training is another than what is said here sets it to False.
    """

    repeatable = True
    by_kernels: ClassVar[bool] = True
    population: PopulationStatistics

    def __init__(
        self, channels: int, options: Optional[BatchNormOptions] = None, sync: bool = False
    ) -> None:
        super().__init__()
        self.options = options or BatchNormOptions()
        self.sync = sync
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.population = PopulationStatistics(channels, self.options.momentum)

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        counted, population = not scope.dummy.get(), self.population.get()
        seen = rows.detach()
        if not counted:
            seen, layout = seen[:0], BatchLayout.empty(rows.device)
        if self.by_kernels and kernels.serve(rows, self.weight, self.bias, *population):
            return self._train_by_kernels(rows, seen, layout)
        batch = self._batch_moments(seen, *population)
        self._record(batch, seen, layout)
        weight, bias = self._affine(batch)
        y, mean, var = normalise(rows, weight, bias, batch.mean, batch.var, batch.n, counted, self)
        self._follow(batch._replace(mean=mean, var=var), seen, layout)
        return y

    def _train_by_kernels(
        self, rows: Tensor, seen: Tensor, layout: Optional[BatchLayout]
    ) -> Tensor:
        momentum = 0.0 if scope.frozen.get() else self.population.momentum
        y, batch, before, after = self._launch(rows, seen, layout, momentum)
        self._record_gap(batch, (before[0], before[1]), (after[0], after[1]))
        return y

    def _launch(
        self, rows: Tensor, seen: Tensor, layout: Optional[BatchLayout], momentum: float
    ) -> tuple[Tensor, Moments, Tensor, Tensor]:
        """Return y, the batch's moments, and running statistics ``(2, C)`` before and after."""
        # Imported late: elsewhere there may be no Triton.
        from rbn_fairseq.norms.kernels.function import normalise_rows

        y, mean, var, n, before, after, share = normalise_rows(
            rows, self.weight, self.bias, self.population.get(), momentum=momentum,
            eps=self.options.eps, clamp=self.options.eps_mode == "clamp", sync=self.sync,
            counted=not scope.dummy.get(),
        )  # fmt: skip
        self._record(Moments(mean.detach(), var.detach(), n, share), seen, layout)
        return y, Moments(mean, var, n, share), before, after

    def _batch_moments(
        self, rows: Tensor, population_mean: Tensor, population_var: Tensor
    ) -> Moments:
        """Return what normalises in training; the population's where there is no token."""
        dtype = torch.promote_types(rows.dtype, torch.float32)
        moments = batch_moments(rows.to(dtype), self.sync)
        if moments.n.is_cpu and moments.n:  # a GPU would have to be waited for
            return moments
        empty = moments.n == 0
        mean = torch.where(empty, population_mean.to(dtype), moments.mean)
        var = torch.where(empty, population_var.to(dtype), moments.var)
        return Moments(mean, var, moments.n, moments.share)

    def _affine(self, batch: Moments) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the map behind the normalisation in training."""
        return self.weight, self.bias

    def _follow(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        """Move the running statistics, and record the gap to them."""
        recorded = bool(scope.recorders.get())
        if recorded:
            before = self._expected(layout)
        if not scope.frozen.get():
            self._move(batch, rows, layout)
        if recorded:
            self._record_gap(batch, before, self._expected(layout))

    def _record_gap(
        self, batch: Moments, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
    ) -> None:
        for recorder in scope.recorders.get():
            gap = scope.Gap(self, batch.mean, batch.var, batch.n, *before, *after, batch.share)
            recorder.append(gap)

    def _expected(self, layout: Optional[BatchLayout]) -> tuple[Tensor, Tensor]:
        """Return what the running statistics expect of a batch, each ``(C,)``; copies."""
        mean, var = self.population.get()
        return mean.clone(), var.clone()

    def _move(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        """Move the running statistics."""
        self.population.update(batch)

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift of evaluation, each ``(C,)``, in the dtype of the statistics."""
        return self._map(*self.population.get())

    def _map(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.weight.to(var.dtype) / self.options.std(var)
        return scale, torch.addcmul(self.bias.to(var.dtype), mean, scale, value=-1)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        options = self.options
        return f"{self.weight.numel()}, eps={options.eps} ({options.eps_mode}), sync={self.sync}"
