"""Verbs that average, recalibrate and fold checkpoints."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rbn_fairseq.cli import options
from rbn_fairseq.writing import check_output


def _recalibrate(
    state: dict[str, Any],
    path: Path,
    data: Optional[Path],
    device: str,
    batches: int,
    dropout: bool,
    seed: int = 1,
    population: str = "mean-of-batches",
    length_bins: Optional[int] = None,
) -> None:
    """Estimate population statistics anew in ``state``, which was made of the file ``path``."""
    from rbn_fairseq.measuring.recalibrate import recalibrate_state
    from rbn_fairseq.measuring.session import open_session

    had_average = "ema" in (state.get("extra_state") or {})
    session = open_session(path, data, device, state)
    show = partial(options.progress, label="recalibrating")
    bins = recalibrate_state(session, state, batches, seed, population, length_bins, dropout, show)
    if bins is not None:
        typer.echo(f"edges of bins: {' '.join(f'{edge:g}' for edge in bins.edges)}")
    if had_average and "ema" not in state["extra_state"]:
        typer.echo("left out: the moving average of --store-ema, which has not these bins")
    typer.echo(f"recalibrated on {state['rbn_fairseq']['recalibrated']['batches']} batches")


def average(
    checkpoints: options.Checkpoints,
    output: options.Output,
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
    data: options.Data = None,
    batches: options.Batches = 200,
    dropout: options.Dropout = False,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    user_dir: options.UserDir = None,
) -> None:
    """Average the weights of checkpoints and recalibrate the population statistics."""
    from rbn_fairseq.checkpoints.average import average_checkpoints, choose_last
    from rbn_fairseq.checkpoints.files import write_checkpoint
    from rbn_fairseq.norms import split_statistics

    if len(checkpoints) == 1 and checkpoints[0].is_dir():
        if last is None:
            raise ValueError(
                f"`{checkpoints[0]}` is a directory: say with --last how many epochs to average."
            )
        paths = choose_last(checkpoints[0], last)
    elif last is not None:
        named = ", ".join(f"`{path}`" for path in checkpoints)
        raise ValueError(f"--last goes with one directory, and given is {named}.")
    else:
        paths = checkpoints
    for given, option in ((dropout, "--dropout"), (data, "--data")):
        if given and not recalibrate:
            raise ValueError(f"{option} goes with --recalibrate.")
    check_output("--output", output, paths, overwrite)
    computing = options.choose_device(device)
    state = average_checkpoints(paths)
    for path in paths:
        typer.echo(f"averaged {path}")
    if recalibrate and split_statistics(state["model"])[1]:
        _recalibrate(state, paths[-1], data, computing, batches, dropout)
    elif recalibrate:
        typer.echo("no norm has running statistics: nothing to recalibrate")
    write_checkpoint(output, state)
    typer.echo(f"wrote {output}")


def recalibrate(
    checkpoint: options.Checkpoint,
    output: options.Output,
    data: options.Data = None,
    ema: Annotated[
        bool,
        typer.Option(
            "--ema",
            help="Take the moving average of the weights, which fairseq keeps in the checkpoint "
            "with --store-ema, for the model.",
        ),
    ] = False,
    batches: options.Batches = 200,
    seed: options.Seed = 1,
    population: options.Estimate = "mean-of-batches",
    length_bins: options.LengthBins = None,
    dropout: options.Dropout = False,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    user_dir: options.UserDir = None,
) -> None:
    """Estimate the population statistics of a checkpoint anew on training data."""
    from rbn_fairseq.checkpoints.average import moving_average
    from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint

    check_output("--output", output, [checkpoint], overwrite)
    computing = options.choose_device(device)
    state = moving_average(checkpoint) if ema else read_checkpoint(checkpoint)
    _recalibrate(
        state, checkpoint, data, computing, batches, dropout, seed, population, length_bins
    )
    write_checkpoint(output, state)
    typer.echo(f"wrote {output}")


def fold(
    checkpoint: options.Checkpoint,
    output: options.Output,
    overwrite: options.Overwrite = False,
    user_dir: options.UserDir = None,
) -> None:
    """Fold norms with running statistics into the linear layers behind them, for translating."""
    from rbn_fairseq.checkpoints.files import write_checkpoint
    from rbn_fairseq.checkpoints.fold import fold_checkpoint

    check_output("--output", output, [checkpoint], overwrite)
    state = fold_checkpoint(checkpoint)
    write_checkpoint(output, state)
    folded = state["rbn_fairseq"]["folded"]
    why = " (what reads them cannot take them in)" if folded["left"] else ""
    typer.echo(
        f"folded {len(folded['vanished'])} norms into linear layers, {len(folded['left'])} are "
        f"left as one multiply-add{why}"
    )
    if folded["by_length"]:
        typer.echo(f"{len(folded['by_length'])} norms with bins of lengths stay as they are")
    typer.echo(f"wrote {output}")
