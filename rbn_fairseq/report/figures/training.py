"""Figure 1, losses and BLEU through training; gradients, learning rate and penalty."""

from collections.abc import Callable, Iterable
from typing import Optional

from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, or_missing
from rbn_fairseq.report.figures.panel import Panel, curves
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series

__all__ = ["dynamics", "losses", "penalty", "placed"]

_COMMAND = "`rbn train … --save-dir DIR`"
_NLL = "bits per target token"


def placed(placement: str, title: str) -> str:
    """Return a panel's title with its placement before it, if that is known."""
    return f"{placement}: {title}" if placement else title


def _train(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    return lambda run: ((it.epoch, it.values.get(name)) for it in run.train)


def _valid(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    return lambda run: ((it.epoch, getattr(it, name)) for it in run.validations)


def losses(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 1: train and valid nll, and BLEU where it was measured, by epoch."""

    def panel(placement: str, series: tuple[Series, ...], title: str, y: str, read: str) -> Panel:
        kind, _, name = read.partition(".")
        values = _train(name) if kind == "train" else _valid(name)
        heading = placed(placement, title)
        return Panel(heading, read, "epoch", y, curves(series, colours, values))

    grid = [
        [
            panel(placement, group.of(placement), "train nll", _NLL, "train.nll_loss"),
            panel(placement, group.of(placement), "valid nll", _NLL, "valid.nll_loss"),
            panel(placement, group.of(placement), "valid BLEU", "BLEU", "valid.bleu"),
        ]
        for placement in group.placements
    ]
    title = "Figure 1: training dynamics"
    caption = (
        "Negative log-likelihood on training and validation sentences, and BLEU of --eval-bleu, "
        "by epoch. Train nll is with dropout and averaged over the epoch, so it lies above the "
        "valid nll early on. The paper (IWSLT14): BN trains faster than LN, and validates worse "
        "from about epoch 7 or 8 on."
    )
    notes = []
    if not any(it.bleu is not None for run in group.runs for it in run.validations):
        notes.append("BLEU by epoch: no run has it. Train with `--eval-bleu` to have it.")
    figure = figure_of_curves(f"figure1{suffix}", title, caption, grid, notes)
    return or_missing(figure, title, "no training log", _COMMAND)


def dynamics(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Gradient norm and learning rate by epoch."""
    grid = [
        [
            Panel(
                placed(placement, "gradient norm"), "train.gnorm", "epoch", "norm, mean of updates",
                curves(group.of(placement), colours, _train("gnorm")), log=True,
            ),
            Panel(
                placed(placement, "learning rate"), "train.lr", "epoch", "learning rate",
                curves(group.of(placement), colours, _train("lr")), log=True,
            ),
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Gradient norm and learning rate"
    caption = (
        "Norm of the gradient before clipping, averaged over an epoch's updates, and the learning "
        "rate at the epoch's end. Axes are logarithmic where values span more "
        "than a factor of ten."
    )
    figure = figure_of_curves(f"gradients{suffix}", title, caption, grid)
    return or_missing(figure, title, "no training log", _COMMAND)


def penalty(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """RBN's two terms and what they add to the loss, by epoch."""
    panels = (
        ("mean term", "rbn_mean", "squared distance"),
        ("deviation term", "rbn_std", "distance"),
        ("penalty", "rbn_penalty", "bits per target token"),
    )
    grid = [
        [
            Panel(
                placed(placement, name), f"train.{key}", "epoch", unit,
                curves(group.of(placement), colours, _train(key)), log=True,
            )
            for name, key, unit in panels
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Terms of RBN's penalty"
    caption = (
        "Distance of batch from population means, and of standard deviations (variances with "
        "--rbn-convention official), summed over layers, unweighted; what both add to the loss "
        "with their weights. Averages over each epoch."
    )
    figure = figure_of_curves(f"penalty{suffix}", title, caption, grid)
    command = "`rbn train … --norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.01`"
    return or_missing(figure, title, "no run with RBN's penalty", command)
