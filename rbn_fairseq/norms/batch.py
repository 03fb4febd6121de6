"""Batch normalisation over the real tokens of a batch."""

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch
from torch import Tensor

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.by_length import PopulationByLength
from rbn_fairseq.norms.moments import Moments, batch_moments, world_size
from rbn_fairseq.norms.normalise import multiply_add, normalise, standard_deviation
from rbn_fairseq.norms.options import OF_NEW, NormOptions, option
from rbn_fairseq.norms.population import Population
from rbn_fairseq.norms.population_norm import PopulationNorm
from rbn_fairseq.norms.tokens import BatchLayout, sentences_of

__all__ = ["BatchNorm", "BatchNormOptions"]


@dataclass(frozen=True)
class BatchNormOptions(NormOptions, norm="batch"):
    """Parameters of ``batch``."""

    momentum: float = option(0.05, OF_NEW, range="(0, 1]")
    eps: float = option(1e-5, "keeps the standard deviation away from 0", range="(0, inf)")
    eps_mode: str = option(
        "add",
        "std = sqrt(var + eps) with `add`, sqrt(max(var, eps)) with `clamp`, as the authors' code "
        "does",
        choices=("add", "clamp"),
    )
    length_bins: int = option(
        1,
        "running statistics for each of so many bins of sentence lengths, in the encoder, as many "
        "training sentences in each; 1 = for all sentences together",
        range="[1, inf)",
    )

    @property
    def clamp(self) -> bool:
        """Whether the variance is clamped to eps, which else is added to it."""
        return self.eps_mode == "clamp"


class BatchNorm(PopulationNorm):
    """Batch norm (Ioffe and Szegedy, 2015; paper, Eqs. 1 to 3) that does not see padding.

    In training, ``y = (x - batch mean) / batch std * weight + bias`` with the statistics of the
    batch's real tokens, and the running statistics move by ``momentum``. In evaluation, the same
    with the running statistics: one multiply-add per element.

    Statistics are biased, and accumulated in fp32 whatever the input's dtype. As in
    torch's batch norm, outputs in fp32 are right to about 1e-6 of |mean| / std. A batch
    without any real token is normalised with the running statistics and moves nothing; a batch
    whose statistics are not finite moves nothing.

    Where batches hold sentences of like length, as fairseq makes them, training normalises given
    the length, and ordinary running statistics do not. With those of a
    :class:`PopulationByLength`, training is the same, to the bit, and evaluation takes scale and
    shift of the sentence's length, ``(B, C)``: one multiply-add per element, whatever else is in
    the batch; ``affine_map`` is that of all lengths together, by which nothing is evaluated. The
    penalty's gap is to what the bins expect of a batch of these lengths. Such a norm has to know
    which sentence a row is of, and is not for decoders: in generation the length is not known yet.

    Args:
        channels: number of channels C.
        options: momentum, eps, eps mode, number of bins.
        sync: use the statistics of all processes together (counts may differ).
        population: the running statistics; ``None`` = as the options say.
    """

    name = "batch"
    summary = "each channel by its mean and variance over the batch's real tokens"
    source = "Ioffe and Szegedy, 2015, Batch Normalization"
    options_type: ClassVar[Any] = BatchNormOptions
    repeatable = True
    options: BatchNormOptions
    population: Population

    def __init__(
        self,
        channels: int,
        options: Optional[BatchNormOptions] = None,
        sync: bool = False,
        population: Optional[Population] = None,
    ) -> None:
        options = options or self.options_type()
        if population is None and options.length_bins == 1:
            population = Population(channels, options.momentum)
        elif population is None:
            population = PopulationByLength(channels, options.momentum, options.length_bins)
        super().__init__(channels, options, sync, population)

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "_affine" in vars(cls) and "repeatable" not in vars(cls):  # it may read what moves
            cls.repeatable = False

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        counted, population = not scope.dummy.get(), self.population.get()
        rows = rows.contiguous()  # for the kernels of GPUs
        seen = rows.detach()
        if not counted:
            seen, layout = seen[:0], BatchLayout.empty(rows.device)
        batch = self._batch_moments(seen, *population)
        self._record(batch, seen, layout)
        weight, bias = self._affine(batch)
        y, mean, var = normalise(
            rows, weight, bias, batch.mean, batch.var, batch.n, counted, self.sync,
            self.options.eps, self.options.clamp, self._input_part(),
        )  # fmt: skip
        self._follow(batch._replace(mean=mean, var=var), seen, layout)
        return y

    def _batch_moments(
        self, rows: Tensor, population_mean: Tensor, population_var: Tensor
    ) -> Moments:
        """Return what normalises in training; the population's where there is no token."""
        moments = batch_moments(rows, self.sync)
        if world_size(self.sync) == 1:
            some = len(rows) > 0
        else:  # a look at the number on a GPU would have to wait for it
            some = moments.n.is_cpu and bool(moments.n)
        if some:
            return moments
        empty, dtype = moments.n == 0, moments.mean.dtype
        mean = torch.where(empty, population_mean.to(dtype), moments.mean)
        var = torch.where(empty, population_var.to(dtype), moments.var)
        return moments._replace(mean=mean, var=var)

    def _affine(self, batch: Moments) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the map behind the normalisation in training."""
        return self.weight, self.bias

    def _input_part(self) -> Optional[Tensor]:
        """Return the factor, ``(1,)``, of the input that training adds to the output."""
        return None

    def _follow(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        """Move the running statistics, and record the gap to them."""
        population, recorded = self.population, bool(scope.recorders.get())
        if recorded:
            before = population.expected(layout, self.sync)
        if not scope.frozen.get():
            population.update(population.describe(batch, rows, layout, self.sync))
        if recorded:
            after = population.expected(layout, self.sync)
            for recorder in scope.recorders.get():
                recorder.append(scope.Gap(self, *batch[:3], *before, *after, batch.share))

    def _record(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        if scope.frozen.get() and scope.moment_recorders.get():  # a measurement
            batch = self.population.describe(batch, rows, layout, self.sync)
        super()._record(batch, rows, layout)

    def _evaluate_by_length(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        assert isinstance(self.population, PopulationByLength)
        layout = sentences_of(layout)
        scale, shift = self._map(*self.population.look_up(layout.lengths))  # (B, C)
        return multiply_add(rows, layout.by_row(scale), layout.by_row(shift))

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift of evaluation, each ``(C,)``, in the dtype of the statistics."""
        return self._map(*self.population.get())

    def _map(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        std = standard_deviation(var, self.options.eps, self.options.clamp)
        scale = self.weight.to(var.dtype) / std
        return scale, torch.addcmul(self.bias.to(var.dtype), mean, scale, value=-1)
