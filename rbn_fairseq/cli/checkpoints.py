"""Verbs that work on saved checkpoints."""

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rbn_fairseq.checkpoints.average import average_checkpoints, choose_last, moving_average
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.fold import fold_checkpoint
from rbn_fairseq.checkpoints.session import open_session
from rbn_fairseq.cli.options import Batches, Estimate, Seed, check_population, progress
from rbn_fairseq.diagnostics import ESTIMATES
from rbn_fairseq.diagnostics import recalibrate as recalibrate_model
from rbn_fairseq.tasks.batches import collate, run_norms, sample_batches

__all__ = ["average", "fold", "recalibrate"]


def _recalibrate_state(
    path: Path, state: dict[str, Any], data: Path, number: int, seed: int, population: str
) -> dict[str, Any]:
    """Return ``state``, with the settings of ``path``, and statistics estimated for its weights."""
    session = open_session(path, str(data))
    session.model.load_state_dict(state["model"])
    batches = sample_batches(session.iterator, number, seed)
    samples = collate(session.dataset, progress(batches, "recalibrating"), session.model)
    used = recalibrate_model(session.model, samples, run_norms, population)
    own = session.model.state_dict()
    for name in state["model"]:
        if ".population." in name:
            state["model"][name] = own[name].cpu()
    note = {"batches": used, "seed": seed, "population": population}
    state["rbn_fairseq"] = {**state.get("rbn_fairseq", {}), "recalibrated": note}
    return state


def average(
    inputs: Annotated[
        list[Path],
        typer.Option(help="A directory of epoch checkpoints, or a checkpoint file (repeatable)."),
    ],
    output: Annotated[Path, typer.Option(help="File to write.")],
    last: Annotated[
        Optional[int], typer.Option(help="How many of the last epochs; with a directory.")
    ] = None,
    recalibrate: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DATA-BIN",
            help="Estimate the population statistics of the averaged weights on this training "
            "data. Without it they are the averages of the running statistics, which do not "
            "belong to the averaged weights.",
        ),
    ] = None,
    batches: Batches = 200,
    seed: Seed = 1,
    population: Estimate = ESTIMATES[0],
) -> None:
    """Average the weights of checkpoints and recalibrate the population statistics."""
    check_population(population, ESTIMATES)
    if len(inputs) == 1 and inputs[0].is_dir():
        if last is None:
            raise ValueError("--inputs is a directory: say with --last how many epochs to average.")
        paths = choose_last(inputs[0], last)
    elif last is not None:
        raise ValueError("--last goes with one directory as --inputs, not with files.")
    else:
        paths = inputs
    state = average_checkpoints(paths)
    for path in paths:
        typer.echo(f"averaged {path}")
    if recalibrate is not None:
        state = _recalibrate_state(paths[-1], state, recalibrate, batches, seed, population)
        typer.echo(f"recalibrated on {state['rbn_fairseq']['recalibrated']['batches']} batches")
    write_checkpoint(output, state)
    typer.echo(f"wrote {output}")


def recalibrate(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint file.")],
    data: Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Training data.")],
    output: Annotated[Path, typer.Option(help="File to write.")],
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
    population: Estimate = ESTIMATES[0],
) -> None:
    """Estimate the population statistics of a checkpoint anew on training data."""
    check_population(population, ESTIMATES)
    state = moving_average(checkpoint) if ema else read_checkpoint(checkpoint)
    state = _recalibrate_state(checkpoint, state, data, batches, seed, population)
    write_checkpoint(output, state)
    used = state["rbn_fairseq"]["recalibrated"]["batches"]
    typer.echo(f"recalibrated on {used} batches, wrote {output}")


def fold(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint file.")],
    output: Annotated[Path, typer.Option(help="File to write.")],
) -> None:
    """Fold norms with running statistics into the linear layers behind them, for translating."""
    if output.resolve() == checkpoint.resolve():
        raise ValueError(
            f"--output `{output}` is the checkpoint itself. A folded checkpoint does not train: "
            "name another file and keep this one."
        )
    state = fold_checkpoint(checkpoint)
    write_checkpoint(output, state)
    folded = state["rbn_fairseq"]["folded"]
    typer.echo(
        f"folded {len(folded['vanished'])} norms into linear layers, {len(folded['left'])} are "
        "left as one multiply-add"
    )
    typer.echo(f"wrote {output}")
