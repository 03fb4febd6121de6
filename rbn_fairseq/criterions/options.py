"""Options of the RBN penalty, and their checks."""

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from rbn_fairseq.models.refusals import task_provides
from rbn_fairseq.norms.options import broken_range, option

__all__ = ["RBNPenaltyConfig", "check_options", "parse_target"]

_WEIGHTS = ("rbn_mean_weight", "rbn_std_weight")


@dataclass
class RBNPenaltyConfig(FairseqDataclass):
    """Options of the penalty."""

    rbn_mean_weight: float = option(
        0.0,
        "RBN: weight lambda of the gap between batch and population mean",
        range="[0, inf)",
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
    rbn_target_tid: Optional[str] = option(
        None,
        "RBN, experimental: bounds on every batch norm's mean and standard-deviation "
        "TID, in per cent, as MEAN,STD or MEAN:STD (in YAML in quotes), each held by a "
        "multiplier of its own in place of the two weights, per token (per sentence with "
        "--sentence-avg); needs --task translation_rbn",
    )
    rbn_target_step: float = option(
        1e-5,
        "RBN, experimental: step size of the multipliers of --rbn-target-tid: with "
        "every update, each grows by it times (smoothed squared gap / squared target - 1), or "
        "by it where that is above 1",
        range="(0, inf)",
    )
    rbn_target_cap: float = option(
        0.01,
        "RBN, experimental: no multiplier of --rbn-target-tid grows beyond this, and "
        "its penalty adds no more to the loss per token, in nats and on average over batches, "
        "however far out of reach the target is",
        range="(0, inf)",
    )
    rbn_warmup_updates: int = option(
        0,
        "RBN: the penalty grows linearly from 0 in the first so many updates; needs "
        "--task translation_rbn",
    )

    @property
    def penalises(self) -> bool:
        """Whether any weight is positive, or there is a target."""
        return max(self.rbn_mean_weight, self.rbn_std_weight) > 0 or self.rbn_target_tid is not None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parse_target(text: str) -> tuple[float, float]:
    """Read ``--rbn-target-tid``: bounds on mean and standard-deviation TID, as fractions.

    Raises:
        ValueError: for what is not two positive numbers.
    """
    try:
        mean, std = (float(part) / 100 for part in re.split("[,:]", text))
    except ValueError:
        mean = std = math.nan
    if not (0 < mean < math.inf and 0 < std < math.inf):
        raise ValueError(
            "--rbn-target-tid must be two positive numbers, the bounds on mean and "
            f"standard-deviation TID in per cent, but is `{text}`. Give, for example, 1,1 or 1:1 "
            "(in YAML in quotes: without them 1:1 is a time there)."
        )
    return mean, std


def check_options(rbn: RBNPenaltyConfig, task: Any) -> None:
    """Check the options against each other and against the task.

    Raises:
        ValueError: for a number outside its range, or options that do not go together.
    """
    for item in fields(RBNPenaltyConfig):
        value = getattr(rbn, item.name)
        if "range" in item.metadata and (rule := broken_range(item.metadata["range"], value)):
            raise ValueError(
                f"{_option(item.name)} must be {rule}, but is {value}. The default is "
                f"{item.default:g}."
            )
    if rbn.rbn_warmup_updates < 0:
        raise ValueError(
            f"--rbn-warmup-updates must be >= 0, but is {rbn.rbn_warmup_updates}. 0 gives the "
            "penalty its whole weight from the start."
        )
    if rbn.rbn_warmup_updates > 0 and not rbn.penalises:
        raise ValueError(
            f"--rbn-warmup-updates is {rbn.rbn_warmup_updates}, but there is no penalty. Give "
            "--rbn-mean-weight, --rbn-std-weight or --rbn-target-tid, or leave it out."
        )
    guided = {
        "--rbn-target-tid": rbn.rbn_target_tid is not None,
        "--rbn-warmup-updates": rbn.rbn_warmup_updates > 0,
    }
    for flag, given in guided.items():
        if given and not task_provides(task, "penalty"):
            raise ValueError(
                f"{flag} follows the updates of the training, which the criterion alone does "
                "not know. Train with --task translation_rbn, or leave it out."
            )
    if rbn.rbn_target_tid is not None:
        _check_target(rbn)


def _check_target(rbn: RBNPenaltyConfig) -> None:
    parse_target(rbn.rbn_target_tid or "")
    for name in _WEIGHTS:
        if getattr(rbn, name) > 0:
            raise ValueError(
                "--rbn-target-tid finds the weight of every batch norm itself, but "
                f"{_option(name)} is {getattr(rbn, name)}. Leave out one of the two."
            )
    if rbn.rbn_convention != "paper":
        raise ValueError(
            "--rbn-target-tid bounds distances from the statistics before the update, of standard "
            f"deviations, but --rbn-convention is `{rbn.rbn_convention}`. Leave out one of the two."
        )
