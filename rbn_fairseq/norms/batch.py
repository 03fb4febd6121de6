"""Batch normalisation over the real tokens of a batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms import kernels, scope
from rbn_fairseq.norms.moments import Moments, all_reduce_sum, batch_moments
from rbn_fairseq.norms.population import PopulationNorm, PopulationStatistics
from rbn_fairseq.norms.tokens import ValidTokens

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

    def __post_init__(self) -> None:
        if not 0 < self.momentum <= 1:
            raise ValueError(
                f"`momentum` (--norm-batch-momentum) is the weight of the new value and must be in "
                f"(0, 1], but is {self.momentum}. The default is 0.05."
            )
        if not 0 < self.eps < math.inf:
            raise ValueError(
                f"`eps` (--norm-batch-eps) must be positive and finite, but is {self.eps}. "
                "The default is 1e-5."
            )
        if self.eps_mode not in ("add", "clamp"):
            raise ValueError(
                "`eps_mode` (--norm-batch-eps-mode) must be `add` or `clamp`, but is "
                f"`{self.eps_mode}`."
            )

    def std(self, var: Tensor) -> Tensor:
        """Return the standard deviation that normalises by."""
        return (var + self.eps if self.eps_mode == "add" else var.clamp(min=self.eps)).sqrt()


class BatchNorm(PopulationNorm):
    """Batch norm (Ioffe and Szegedy, 2015; paper, Eqs. 1 to 3) that does not see padding.

    In training, ``y = (x - batch mean) / batch std * weight + bias`` with the statistics of the
    batch's real tokens, and the running statistics move by ``momentum``. In evaluation, the same
    with the running statistics: one multiply-add per element.

    Statistics are biased, two-pass, and accumulated in fp32 whatever the input's dtype. A batch
    without any real token is normalised with the running statistics and moves nothing; a batch
    whose statistics are not finite moves nothing. Outputs at padding are whatever the affine map
    gives there; gradients from and to padding are exactly zero.

    Args:
        channels: number of channels C.
        options: momentum, eps, eps mode.
        sync: use the statistics of all processes together (counts may differ).
    """

    repeatable = True
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

    def _train(self, x: Tensor, tokens: ValidTokens) -> Tensor:
        if scope.dummy.get():
            tokens = ValidTokens.none_of(x)
        before = self.population.get()
        rows = x.reshape(-1, x.shape[-1])  # (tokens, C)
        if type(self) is BatchNorm and kernels.serve(rows, self.weight, self.bias, *before):
            return self._train_by_kernels(rows, tokens).view(x.shape)
        batch = self._batch_moments(rows, tokens, *before)
        self._record(batch)
        weight, bias = self._affine(batch)
        y, mean, var = _normalise(rows, weight, bias, batch.mean, batch.var, batch.n, tokens, self)
        recorders = scope.recorders.get()
        if recorders:
            before = (before[0].clone(), before[1].clone())
        if not scope.frozen.get():
            self.population.update(Moments(mean, var, batch.n))
        if recorders:
            mean_after, var_after = self.population.get()
            after = (mean_after.clone(), var_after.clone())
            gap = scope.Gap(self, mean, var, batch.n, *before, *after, batch.share)
            for recorder in recorders:
                recorder.append(gap)
        return y.view(x.shape)

    def _train_by_kernels(self, rows: Tensor, tokens: ValidTokens) -> Tensor:
        # Imported late: elsewhere there may be no Triton.
        from rbn_fairseq.norms.kernels.function import normalise_rows

        y, mean, var, n, before, after, share = normalise_rows(
            rows, self.weight, self.bias, tokens.flat, self.population.get(),
            momentum=0.0 if scope.frozen.get() else self.population.momentum,
            eps=self.options.eps, clamp=self.options.eps_mode == "clamp", sync=self.sync,
        )  # fmt: skip
        self._record(Moments(mean.detach(), var.detach(), n, share))
        for recorder in scope.recorders.get():
            gap = scope.Gap(self, mean, var, n, before[0], before[1], after[0], after[1], share)
            recorder.append(gap)
        return y

    @torch.no_grad()
    def _batch_moments(
        self, rows: Tensor, tokens: ValidTokens, population_mean: Tensor, population_var: Tensor
    ) -> Moments:
        """Return what normalises in training; the population's where no token is real."""
        dtype = torch.promote_types(rows.dtype, torch.float32)
        moments = batch_moments(tokens.pack(rows).to(dtype), tokens, self.sync)
        empty = moments.n == 0
        mean = torch.where(empty, population_mean.to(dtype), moments.mean)
        var = torch.where(empty, population_var.to(dtype), moments.var)
        return Moments(mean, var, moments.n, moments.share)

    def _affine(self, batch: Moments) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the map behind the normalisation in training."""
        return self.weight, self.bias

    def _evaluate(self, x: Tensor) -> Tensor:
        mean, var = self.population.get()
        scale = self.weight.to(var.dtype) / self.options.std(var)  # (C,)
        shift = self.bias.to(var.dtype) - mean * scale  # (C,)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.addcmul(shift.to(dtype), x.to(dtype), scale.to(dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        options = self.options
        return f"{self.weight.numel()}, eps={options.eps} ({options.eps_mode}), sync={self.sync}"


class _Normalise(torch.autograd.Function):
    """(rows, weight, bias) -> (y, batch mean, batch variance), with all their gradients.

    The moments come in ready, because they also serve elsewhere; they are functions of the rows.

    A penalty on the batch statistics reaches x only through mean and variance, so that its
    gradient folds into the elementwise backward: for real tokens, with s the standard deviation
    and n the number of tokens,

        dx = (weight / s) g + k (x - mean) + c,
        c = dmean / n - (weight / s) mean(g),
        k = 2 dvar / n - (weight / s^3) mean(g (x - mean))

    (the last mean is left out of k where a clamp has made s a constant).
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,  # (tokens, C)
        weight: Tensor,
        bias: Tensor,
        batch_mean: Tensor,
        batch_var: Tensor,
        count: Tensor,
        tokens: ValidTokens,
        norm: BatchNorm,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = batch_mean.dtype
        scale = weight.to(dtype) / norm.options.std(batch_var)
        y = torch.addcmul(bias.to(dtype), rows.to(dtype) - batch_mean, scale)
        ctx.tokens, ctx.sync, ctx.options = tokens, norm.sync, norm.options
        ctx.dtypes = weight.dtype, bias.dtype
        mean, var = batch_mean.clone(), batch_var.clone()  # as outputs they have gradients
        ctx.save_for_backward(rows, weight, mean, var, count)
        return y.to(rows.dtype), mean, var

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_y: Tensor, grad_mean: Tensor, grad_var: Tensor
    ) -> tuple[Optional[Tensor], ...]:
        rows, weight, mean, var, count = ctx.saved_tensors
        tokens: ValidTokens = ctx.tokens
        dtype, n = mean.dtype, count.clamp(min=1)
        grad = tokens.pack(grad_y).to(dtype)
        centred = tokens.pack(rows).to(dtype) - mean
        std = ctx.options.std(var)
        scale = weight.to(dtype) / std

        grad_sum, grad_dot = grad.sum(0), (grad * centred).sum(0)
        sums = torch.stack([grad_sum * scale, grad_dot * scale, grad_mean, grad_var])  # (4, C)
        total, total_dot, total_mean, total_var = all_reduce_sum(sums, ctx.sync).unbind()

        moving = 1.0 if ctx.options.eps_mode == "add" else (var > ctx.options.eps).to(dtype)
        c = (total_mean - total) / n
        k = (2 * total_var - moving * total_dot / std.square()) / n
        dx = tokens.unpack_(centred.mul_(k).add_(c).addcmul_(scale, grad)).to(rows.dtype)
        dweight = (grad_dot / std).to(ctx.dtypes[0])
        return dx, dweight, grad_sum.to(ctx.dtypes[1]), None, None, None, None, None


_normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Normalise.apply
