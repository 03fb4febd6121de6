"""The RBN penalty: distances of batch statistics from population statistics, added to a loss."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from rbn_fairseq.norms import Gap, has_batch_norm, record_gaps, standard_deviation
from rbn_fairseq.norms.options import check_values, option

__all__ = ["GapTerms", "RBNPenalty", "RBNPenaltyConfig", "gap_terms", "log_loss", "totals"]


def totals(logging_outputs: Sequence[dict[str, Any]], *names: str) -> list[Any]:
    """Add up numbers of the logs of several batches and processes."""
    return [sum(log.get(name, 0) for log in logging_outputs) for name in names]


def log_loss(logging_outputs: Sequence[dict[str, Any]]) -> None:
    """Log the mean loss in bits, ``loss`` by the sample size and ``nll_loss`` by tokens.

    Both of every batch: validation has a mean over batches, and would have it without those that
    log nothing.
    """
    loss, size, tokens = totals(logging_outputs, "loss", "sample_size", "ntokens")
    metrics.log_scalar("loss", loss / size / math.log(2), size, round=3)
    metrics.log_scalar("nll_loss", loss / tokens / math.log(2), tokens, round=3)


@dataclass
class RBNPenaltyConfig(FairseqDataclass):
    """Options of the penalty."""

    rbn_mean_weight: float = option(
        0.0, "RBN: weight lambda of the gap between batch and population mean", range="[0, inf)"
    )
    rbn_std_weight: float = option(
        0.0,
        "RBN: weight nu of the gap between batch and population standard deviation "
        "(of variances with --rbn-convention official)",
        range="[0, inf)",
    )
    rbn_convention: ChoiceEnum(("paper", "official")) = option(  # type: ignore[valid-type]
        "paper",
        "RBN: `paper`: squared L2 gaps of mean and standard deviation, against the "
        "population statistics before the batch's update; `official`: as the authors' scripts "
        "run, squared L2 for means and L1 for variances, against the statistics after it",
    )
    rbn_reduction: ChoiceEnum(("sum", "token")) = option(  # type: ignore[valid-type]
        "sum",
        "RBN: `sum`: added once to each micro-batch's summed loss, as the authors do, "
        "so that its weight per token falls with the batch size; `token`: multiplied by the "
        "sample size, so that it depends neither on batch size nor on the number of GPUs",
    )
    rbn_warmup_updates: int = option(
        0,
        "RBN: the penalty grows linearly from 0 in the first so many updates; needs "
        "a task of this plugin",
        range="[0, inf)",
    )

    @property
    def penalises(self) -> bool:
        """Whether any weight is positive."""
        return max(self.rbn_mean_weight, self.rbn_std_weight) > 0


class GapTerms(NamedTuple):
    """Sums over all layers and channels, unweighted, 0-dim: what lambda and nu multiply."""

    mean: Tensor
    std: Tensor


def gap_terms(gaps: Sequence[Gap], convention: str) -> GapTerms:
    """Compute the penalty's two terms from the gaps of one forward (paper, Section 4.1).

    ``paper``: ``||mu_B - mu||^2`` and ``||sigma_B - sigma||^2`` against the population statistics
    before this batch moved them, with the standard deviation that the norm divides by.
    ``official``, what the authors' published runs compute: ``||mu_B - mu||^2`` and the L1
    distance of the variances ``|var_B - var|``, against the statistics after the update.

    Args:
        gaps: at least one.
        convention: ``paper`` or ``official``.
    """
    alike = defaultdict(list)  # what can be stacked
    for gap in gaps:
        options = gap.norm.options
        alike[options.eps, options.clamp, gap.batch_mean.numel()].append(gap)
    terms = []
    for (eps, clamp, _), group in alike.items():
        deviation = partial(standard_deviation, eps=eps, clamp=clamp)
        mean = torch.stack([gap.batch_mean for gap in group])  # (layers, C)
        var = torch.stack([gap.batch_var for gap in group])
        if convention == "paper":
            target_mean = torch.stack([gap.mean_before for gap in group])
            target_var = torch.stack([gap.var_before for gap in group])
            spread = (deviation(var) - deviation(target_var)).square()
        else:
            target_mean = torch.stack([gap.mean_after for gap in group])
            target_var = torch.stack([gap.var_after for gap in group])
            spread = (var - target_var).abs()
        terms.append(torch.stack([(mean - target_mean).square().sum(), spread.sum()]))
    return GapTerms(*torch.stack(terms).sum(0).unbind())


class RBNPenalty(nn.Module):
    """Mixin that adds the RBN penalty to any fairseq criterion; put it first among the bases.

    The penalty is added in training only. ``loss`` is logged without it, so that it stays
    comparable with other norms; ``rbn_mean`` and ``rbn_std`` are the unweighted terms per
    micro-batch, ``rbn_penalty`` what is added to ``loss`` (bits per unit of the sample size, a
    token, or with ``--sentence-avg`` a sentence: the objective is ``loss + rbn_penalty``).

    Attributes:
        rbn: the options.
    """

    rbn: RBNPenaltyConfig = RBNPenaltyConfig()
    task: Any  # set by fairseq's criterions
    _model_checked = False

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> "RBNPenalty":
        """Build the criterion from its config.

        Raises:
            ValueError: for options outside their ranges or that do not go together.
        """
        criterion: RBNPenalty = super().build_criterion(cfg, task)  # type: ignore[misc]
        names = [item.name for item in fields(RBNPenaltyConfig) if item.name.startswith("rbn_")]
        rbn = criterion.rbn = RBNPenaltyConfig(**{name: getattr(cfg, name) for name in names})
        check_values(RBNPenaltyConfig, rbn)
        if rbn.rbn_warmup_updates > 0 and not rbn.penalises:
            raise ValueError(
                f"--rbn-warmup-updates is {rbn.rbn_warmup_updates}, but there is no penalty. Give "
                "--rbn-mean-weight or --rbn-std-weight, or leave it out."
            )
        if rbn.rbn_warmup_updates > 0 and not hasattr(task, "training"):
            raise ValueError(
                "--rbn-warmup-updates follows the updates of the training, which the criterion "
                "alone does not know. Train with a task of this plugin, such as --task "
                "translation_rbn, or leave it out."
            )
        return criterion

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that leaves the penalty nothing to act on.

        Raises:
            ValueError: if there is a penalty and the model has no batch norm.
        """
        if self.rbn.penalises and not has_batch_norm(model):
            raise ValueError(
                "--rbn-mean-weight and --rbn-std-weight act on batch norms, but the model has "
                "none. Choose some (for example --norm-encoder batch), or leave them out."
            )
        self._model_checked = True

    def forward(self, model: nn.Module, sample: Any, reduce: bool = True) -> Any:
        """Compute the base criterion's loss; in training, add the penalty.

        With ``reduce=False`` the penalty is spread evenly over the loss's elements.
        """
        if not (self.training and model.training and self.rbn.penalises):
            return super().forward(model, sample, reduce)
        if not self._model_checked:
            self.check_model(model)
        with record_gaps() as gaps:
            loss, sample_size, log = super().forward(model, sample, reduce)
        # LayerDrop may have dropped every layer with a batch norm. The log has the same entries
        # all the same: fairseq sums logs over processes by the entries of one of them.
        mean, std, penalty = loss.new_zeros(3, dtype=torch.float32).unbind()
        if gaps:
            mean, std = gap_terms(gaps, self.rbn.rbn_convention)
            penalty = self.rbn.rbn_mean_weight * mean + self.rbn.rbn_std_weight * std
            # Synchronised statistics are every process's: the sum counts them once.
            factor = sample_size if self.rbn.rbn_reduction == "token" else gaps[0].share
            warmup = self.rbn.rbn_warmup_updates
            strength = min(1.0, self.task.training.updates / warmup) if warmup else 1.0
            penalty = strength * (penalty * factor)
        log.update(
            rbn_mean=mean.detach(),
            rbn_std=std.detach(),
            rbn_penalty=penalty.detach(),
            rbn_batches=int(bool(gaps)),
        )
        return loss + penalty.to(loss.dtype) / loss.numel(), sample_size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Aggregate the base criterion's logs, and the penalty's beside them."""
        super().reduce_metrics(logging_outputs)  # type: ignore[misc]
        names = ("rbn_batches", "rbn_mean", "rbn_std", "rbn_penalty", "sample_size")
        batches, mean, std, penalty, size = totals(logging_outputs, *names)
        if not batches:
            return
        metrics.log_scalar("rbn_mean", mean / batches, batches, round=5)
        metrics.log_scalar("rbn_std", std / batches, batches, round=5)
        metrics.log_scalar("rbn_penalty", penalty / size / math.log(2), size, round=6)
