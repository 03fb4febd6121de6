"""The line that says, when a training starts, what is normalised and penalised how."""

from typing import Any

import numpy as np

from rbn_fairseq.criterions.options import RBNPenaltyConfig, parse_target
from rbn_fairseq.models.config import NormConfig
from rbn_fairseq.norms.moments import world_size

__all__ = ["describe_norms", "describe_penalty", "mean_size"]


def describe_norms(norms: NormConfig, pre: tuple[bool, bool], running: bool, bins: int) -> str:
    """Say which norms sit where, and whose batch their statistics are of.

    Args:
        norms: which norms go where.
        pre: whether encoder and decoder are Pre-Norm, and have a norm behind the last layer.
        running: whether any norm has running statistics.
        bins: of sentence lengths, for which some have them; 1 = for none.
    """
    finals = norms.encoder_final, norms.decoder_final
    sides = [
        f"{side} {plan}" + (f", final {final}" if before else "")
        for side, plan, final, before in zip(
            ("encoder", "decoder"), (norms.encoder, norms.decoder), finals, pre, strict=True
        )
    ]
    placement = "" if norms.placement == "standard" else f" ({norms.placement})"
    whose = ""
    if running and norms.sync:
        whose = f" | statistics of the joint batch (processes: {world_size(sync=True)})"
    elif running:
        whose = " | statistics of each process's own batch"
    by_length = f" | running statistics by sentence length ({bins} bins)" if bins > 1 else ""
    return f"{'; '.join(sides)}{placement}{whose}{by_length}"


def mean_size(iterator: Any, dataset: Any, sentences: bool) -> float:
    """Return the mean sample size of a micro-batch: target tokens, or sentences."""
    batches = iterator.frozen_batches
    if sentences:
        return sum(map(len, batches)) / len(batches)
    return float(dataset.tgt_sizes[np.concatenate(batches)].sum()) / len(batches)


def describe_penalty(rbn: RBNPenaltyConfig, size: float, unit: str, replicas: int) -> str:
    """Say what the penalty's weights come to per unit of the sample size, or its targets.

    With ``sum`` each micro-batch adds ``weight * gap`` to a loss that is divided by the sample
    size of all, and with synchronised statistics one process of several its part of it.

    Args:
        rbn: the penalty.
        size: mean sample size of a micro-batch.
        unit: of the sample size, ``token`` or ``sentence``.
        replicas: number of processes that share their statistics.
    """
    warmup = rbn.rbn_warmup_updates
    growing = f", growing from 0 in the first {warmup:,} updates" if warmup else ""
    if rbn.rbn_target_tid is not None:
        targets = " and ".join(f"{100 * it:g} %" for it in parse_target(rbn.rbn_target_tid))
        return (
            f"RBN penalty: TID of mean and std at most {targets} in every batch norm, by "
            f"multipliers with step {rbn.rbn_target_step:g} and cap {rbn.rbn_target_cap:g}{growing}"
        )
    weights = rbn.rbn_mean_weight, rbn.rbn_std_weight
    by = size * replicas if rbn.rbn_reduction == "sum" else 1.0
    effective = " and ".join(f"{weight / by:.3g}" for weight in weights)
    given = "{:g} and {:g}".format(*weights)
    return (
        f"RBN penalty ({rbn.rbn_convention}, {rbn.rbn_reduction}): weights of mean and std "
        f"{given}, which is {effective} per {unit} (micro-batches of {size:,.0f} {unit}s){growing}"
    )
