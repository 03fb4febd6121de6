"""Options of the RBN penalty, and their checks."""

from dataclasses import dataclass, fields
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from rbn_fairseq.models.refusals import task_provides
from rbn_fairseq.norms.options import broken_range, option

__all__ = ["RBNPenaltyConfig", "check_options"]


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
    rbn_warmup_updates: int = option(
        0,
        "RBN: the penalty grows linearly from 0 in the first so many updates; needs "
        "--task translation_rbn",
        range="[0, inf)",
    )

    @property
    def penalises(self) -> bool:
        """Whether any weight is positive."""
        return max(self.rbn_mean_weight, self.rbn_std_weight) > 0


def check_options(rbn: RBNPenaltyConfig, task: Any) -> None:
    """Check the options against each other and against the task.

    Raises:
        ValueError: for a number outside its range, or options that do not go together.
    """
    for item in fields(RBNPenaltyConfig):
        value = getattr(rbn, item.name)
        if "range" in item.metadata and (rule := broken_range(item.metadata["range"], value)):
            flag = f"--{item.name.replace('_', '-')}"
            raise ValueError(
                f"{flag} must be {rule}, but is {value}. The default is {item.default:g}."
            )
    if rbn.rbn_warmup_updates > 0 and not rbn.penalises:
        raise ValueError(
            f"--rbn-warmup-updates is {rbn.rbn_warmup_updates}, but there is no penalty. Give "
            "--rbn-mean-weight or --rbn-std-weight, or leave it out."
        )
    if rbn.rbn_warmup_updates > 0 and not task_provides(task, "updates"):
        raise ValueError(
            "--rbn-warmup-updates follows the updates of the training, which the criterion alone "
            "does not know. Train with --task translation_rbn, or leave it out."
        )
