"""The RBN penalty: the distance of batch statistics from population statistics."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from rbn_fairseq.norms import Gap, has_batch_norm, record_gaps

__all__ = ["GapTerms", "RBNPenalty", "RBNPenaltyConfig", "gap_terms"]


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
        alike[gap.norm.options, gap.batch_mean.numel()].append(gap)
    terms = []
    for (options, _), group in alike.items():
        mean = torch.stack([gap.batch_mean for gap in group])  # (layers, C)
        var = torch.stack([gap.batch_var for gap in group])
        if convention == "paper":
            target_mean = torch.stack([gap.mean_before for gap in group])
            target_var = torch.stack([gap.var_before for gap in group])
            spread = (options.std(var) - options.std(target_var)).square()
        else:
            target_mean = torch.stack([gap.mean_after for gap in group])
            target_var = torch.stack([gap.var_after for gap in group])
            spread = (var - target_var).abs()
        terms.append(torch.stack([(mean - target_mean).square().sum(), spread.sum()]))
    return GapTerms(*torch.stack(terms).sum(0).unbind())


@dataclass
class RBNPenaltyConfig(FairseqDataclass):
    """Options of the penalty."""

    rbn_mean_weight: float = field(
        default=0.0,
        metadata={"help": "RBN: weight lambda of the gap between batch and population mean; >= 0"},
    )
    rbn_std_weight: float = field(
        default=0.0,
        metadata={
            "help": "RBN: weight nu of the gap between batch and population standard deviation "
            "(of variances with --rbn-convention official); >= 0"
        },
    )
    rbn_convention: ChoiceEnum(("paper", "official")) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={
            "help": "RBN: `paper`: squared L2 gaps of mean and standard deviation, against the "
            "population statistics before the batch's update; `official`: as the authors' scripts "
            "run, squared L2 for means and L1 for variances, against the statistics after it"
        },
    )
    rbn_reduction: ChoiceEnum(("sum", "token")) = field(  # type: ignore[valid-type]
        default="sum",
        metadata={
            "help": "RBN: `sum`: added once to each micro-batch's summed loss, as the authors do, "
            "so that its weight per token falls with the batch size; `token`: multiplied by the "
            "sample size, so that it depends neither on batch size nor on the number of GPUs"
        },
    )


class RBNPenalty(nn.Module):
    """Mixin that adds the RBN penalty to any fairseq criterion; put it first among the bases.

    The penalty is added in training only. ``loss`` is logged without it, so that it stays
    comparable with other norms; ``rbn_mean`` and ``rbn_std`` are the unweighted terms per
    micro-batch, ``rbn_penalty`` what they add to ``loss`` (bits per sample-size unit: the
    objective is ``loss + rbn_penalty``).
    """

    rbn: RBNPenaltyConfig = RBNPenaltyConfig()
    _model_checked = False

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> "RBNPenalty":
        """Build the criterion from its config.

        Raises:
            ValueError: for a weight that is negative or not finite.
        """
        criterion: RBNPenalty = super().build_criterion(cfg, task)  # type: ignore[misc]
        weights = {name: getattr(cfg, name) for name in ("rbn_mean_weight", "rbn_std_weight")}
        for name, weight in weights.items():
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(
                    f"--{name.replace('_', '-')} must be a finite number >= 0, but is {weight}. "
                    "0 turns its term off."
                )
        criterion.rbn = RBNPenaltyConfig(
            **weights, rbn_convention=str(cfg.rbn_convention), rbn_reduction=str(cfg.rbn_reduction)
        )
        return criterion

    @property
    def penalises(self) -> bool:
        """Whether any weight is positive."""
        return self.rbn.rbn_mean_weight > 0 or self.rbn.rbn_std_weight > 0

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that leaves the penalty nothing to act on.

        Raises:
            ValueError: if a weight is positive and the model has no batch norm.
        """
        if self.penalises and not has_batch_norm(model):
            raise ValueError(
                "--rbn-mean-weight and --rbn-std-weight act on batch norms, but the model has "
                "none. Choose some (for example --norm-encoder batch) or set both weights to 0."
            )
        self._model_checked = True

    def forward(self, model: nn.Module, sample: Any, reduce: bool = True) -> Any:
        """Compute the base criterion's loss; in training, add the penalty.

        With ``reduce=False`` the penalty is spread evenly over the loss's elements.
        """
        if not (self.training and model.training and self.penalises):
            return super().forward(model, sample, reduce)
        if not self._model_checked:
            self.check_model(model)
        with record_gaps() as gaps:
            loss, sample_size, log = super().forward(model, sample, reduce)
        # LayerDrop may have dropped every layer with a batch norm. The log has the same entries
        # all the same: fairseq sums logs over processes by the entries of one of them.
        nothing = GapTerms(*loss.new_zeros(2, dtype=torch.float32).unbind())
        terms = gap_terms(gaps, self.rbn.rbn_convention) if gaps else nothing
        penalty = self.rbn.rbn_mean_weight * terms.mean + self.rbn.rbn_std_weight * terms.std
        if self.rbn.rbn_reduction == "token":
            penalty = penalty * sample_size
        elif gaps:  # synchronised statistics are every process's: the sum counts them once
            penalty = penalty * gaps[0].share
        log.update(
            rbn_mean=terms.mean.detach(),
            rbn_std=terms.std.detach(),
            rbn_penalty=penalty.detach(),
            rbn_batches=int(bool(gaps)),
        )
        return loss + penalty.to(loss.dtype) / loss.numel(), sample_size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Aggregate the base criterion's logs, and the penalty's beside them."""
        super().reduce_metrics(logging_outputs)  # type: ignore[misc]
        batches = sum(log.get("rbn_batches", 0) for log in logging_outputs)
        if not batches:
            return
        total = {
            name: sum(log.get(name, 0) for log in logging_outputs)
            for name in ("rbn_mean", "rbn_std", "rbn_penalty", "sample_size")
        }
        metrics.log_scalar("rbn_mean", total["rbn_mean"] / batches, batches, round=5)
        metrics.log_scalar("rbn_std", total["rbn_std"] / batches, batches, round=5)
        size = total["sample_size"]
        metrics.log_scalar("rbn_penalty", total["rbn_penalty"] / size / math.log(2), size, round=6)
