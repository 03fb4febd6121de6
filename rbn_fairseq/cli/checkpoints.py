"""Verbs that make checkpoints of checkpoints."""

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rbn_fairseq.cli.options import (
    Batches,
    Checkpoint,
    Checkpoints,
    Data,
    Device,
    Estimate,
    LengthBins,
    LengthEdges,
    Output,
    Overwrite,
    Seed,
    UserDir,
    check_population,
    choose_device,
    progress,
)
from rbn_fairseq.files import check_output

if TYPE_CHECKING:
    from rbn_fairseq.checkpoints.session import Session

__all__ = ["average", "fold", "recalibrate"]

_STATISTICS = ".population."
_AVERAGES = ("ema", "ema_fp32_params")  # of --store-ema, in a checkpoint's extra_state


def _give_bins(session: "Session", state: dict[str, Any], number: int, rule: str) -> None:
    """Give the model bins, and ``state`` its settings; a moving average has others, and goes."""
    from rbn_fairseq.checkpoints.length_bins import give_length_bins

    bins = give_length_bins(session, number, rule)
    settings = {"norm_batch_length_bins": number, "norm_batch_length_edges": rule}
    state["cfg"]["model"] = {**state["cfg"]["model"], **settings}
    if bins is not None:
        typer.echo(f"edges of bins: {' '.join(f'{edge:g}' for edge in bins.edges)}")
    extra = state.get("extra_state") or {}
    if [extra.pop(name, None) for name in _AVERAGES][0] is not None:
        typer.echo("left out: the moving average of --store-ema, which has not these bins")


def _recalibrate_state(
    session: "Session",
    state: dict[str, Any],
    number: int,
    seed: int,
    population: str,
    lengths: tuple[Optional[int], str],
) -> dict[str, Any]:
    """Return ``state`` with statistics estimated for its weights.

    ``lengths``: the number of bins of sentence lengths, ``None`` for those that it has, and where
    they end.
    """
    from rbn_fairseq.diagnostics import recalibrate as recalibrate_model
    from rbn_fairseq.tasks.batches import collate, run_norms, sample_batches

    session.model.load_state_dict(state["model"])
    number_of_bins, rule = lengths
    if number_of_bins is not None:
        _give_bins(session, state, number_of_bins, rule)
    batches = sample_batches(session.iterator, number, seed)
    samples = collate(session.dataset, progress(batches, "recalibrating"), session.model)
    used = recalibrate_model(session.model, samples, run_norms, population)
    rest = {name: value for name, value in state["model"].items() if _STATISTICS not in name}
    own = session.model.state_dict()
    state["model"] = rest | {name: own[name].cpu() for name in own if _STATISTICS in name}
    note = {"batches": used, "seed": seed, "population": population}
    if number_of_bins is not None:
        note |= {"length_bins": number_of_bins, "length_edges": rule}
    state["rbn_fairseq"] = {**state.get("rbn_fairseq", {}), "recalibrated": note}
    return state


def average(
    checkpoints: Checkpoints,
    output: Output,
    last: Annotated[
        Optional[int], typer.Option(help="How many of the last epochs; with a directory.")
    ] = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Estimate the population statistics of the averaged weights on training data. "
            "Without it they are the averages of the running statistics, which do not belong to "
            "the averaged weights.",
        ),
    ] = False,
    data: Data = None,
    batches: Batches = 200,
    seed: Seed = 1,
    population: Estimate = "mean-of-batches",
    length_bins: LengthBins = None,
    length_edges: LengthEdges = "quantiles",
    device: Device = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Average the weights of checkpoints and recalibrate the population statistics."""
    from rbn_fairseq.checkpoints.average import average_checkpoints, choose_last
    from rbn_fairseq.checkpoints.files import write_checkpoint
    from rbn_fairseq.checkpoints.length_bins import check_length_bins
    from rbn_fairseq.checkpoints.session import open_session
    from rbn_fairseq.diagnostics import ESTIMATES

    check_population(population, ESTIMATES)
    check_length_bins(length_bins, length_edges)
    for option, value in (("--length-bins", length_bins), ("--data", data)):
        if not recalibrate and value is not None:
            raise ValueError(f"{option} is for --recalibrate, which estimates statistics on data.")
    if len(checkpoints) == 1 and checkpoints[0].is_dir():
        if last is None:
            raise ValueError(
                f"`{checkpoints[0]}` is a directory: say with --last how many epochs to average."
            )
        paths = choose_last(checkpoints[0], last)
    elif last is not None and not checkpoints[0].exists():
        raise ValueError(f"There is no directory `{checkpoints[0]}`.")
    elif last is not None:
        raise ValueError("--last goes with one directory, not with files.")
    else:
        paths = checkpoints
    check_output("--output", output, paths, overwrite)
    computing = choose_device(device)
    state = average_checkpoints(paths)
    for path in paths:
        typer.echo(f"averaged {path}")
    if recalibrate:
        session = open_session(paths[-1], data, computing)
        state = _recalibrate_state(
            session, state, batches, seed, population, (length_bins, length_edges)
        )
        typer.echo(f"recalibrated on {state['rbn_fairseq']['recalibrated']['batches']} batches")
    write_checkpoint(output, state)
    typer.echo(f"wrote {output}")


def recalibrate(
    checkpoint: Checkpoint,
    output: Output,
    data: Data = None,
    ema: Annotated[
        bool,
        typer.Option(
            "--ema",
            help="Take the moving average of the weights, which fairseq keeps in the checkpoint "
            "with --store-ema, for the model.",
        ),
    ] = False,
    batches: Batches = 200,
    seed: Seed = 1,
    population: Estimate = "mean-of-batches",
    length_bins: LengthBins = None,
    length_edges: LengthEdges = "quantiles",
    device: Device = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Estimate the population statistics of a checkpoint anew on training data."""
    from rbn_fairseq.checkpoints.average import moving_average
    from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
    from rbn_fairseq.checkpoints.length_bins import check_length_bins
    from rbn_fairseq.checkpoints.session import open_session
    from rbn_fairseq.diagnostics import ESTIMATES

    check_population(population, ESTIMATES)
    check_length_bins(length_bins, length_edges)
    check_output("--output", output, [checkpoint], overwrite)
    computing = choose_device(device)
    state = moving_average(checkpoint) if ema else read_checkpoint(checkpoint)
    session = open_session(checkpoint, data, computing)
    lengths = length_bins, length_edges
    state = _recalibrate_state(session, state, batches, seed, population, lengths)
    write_checkpoint(output, state)
    used = state["rbn_fairseq"]["recalibrated"]["batches"]
    typer.echo(f"recalibrated on {used} batches, wrote {output}")


def fold(
    checkpoint: Checkpoint,
    output: Output,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Fold norms with running statistics into the linear layers behind them, for translating."""
    from rbn_fairseq.checkpoints.files import write_checkpoint
    from rbn_fairseq.checkpoints.fold import fold_checkpoint

    check_output("--output", output, [checkpoint], overwrite)
    state = fold_checkpoint(checkpoint)
    write_checkpoint(output, state)
    folded = state["rbn_fairseq"]["folded"]
    typer.echo(
        f"folded {len(folded['vanished'])} norms into linear layers, {len(folded['left'])} are "
        "left as one multiply-add"
    )
    if folded["by_length"]:
        typer.echo(
            f"{len(folded['by_length'])} norms with bins of sentence lengths stay as they are: a "
            "linear layer cannot take in a scale and shift that each sentence looks up"
        )
    typer.echo(f"wrote {output}")
