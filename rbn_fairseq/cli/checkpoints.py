"""Verbs that work on saved checkpoints."""

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rbn_fairseq.checkpoints.average import average_checkpoints, choose_last, moving_average
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.fold import fold_checkpoint
from rbn_fairseq.checkpoints.length_bins import check_length_bins, give_length_bins
from rbn_fairseq.checkpoints.session import open_session
from rbn_fairseq.cli.options import (
    Batches,
    Estimate,
    LengthEdges,
    Seed,
    check_population,
    progress,
)
from rbn_fairseq.diagnostics import ESTIMATES
from rbn_fairseq.diagnostics import recalibrate as recalibrate_model
from rbn_fairseq.norms.lengths import RULES
from rbn_fairseq.tasks.batches import collate, run_norms, sample_batches

__all__ = ["average", "fold", "recalibrate"]

_STATISTICS = ".population."


LengthBins = Annotated[
    Optional[int],
    typer.Option(
        min=1,
        help="Estimate them for each of so many bins of sentence lengths, whatever the checkpoint "
        "was trained with; 1 = for all sentences together (default: as the checkpoint has it)",
    ),
]


def _recalibrate_state(
    path: Path,
    state: dict[str, Any],
    data: Path,
    number: int,
    seed: int,
    population: str,
    lengths: tuple[Optional[int], str],
) -> dict[str, Any]:
    """Return ``state``, with the settings of ``path``, and statistics estimated for its weights.

    ``lengths``: the number of bins of sentence lengths, ``None`` for those that it has, and where
    they end.
    """
    session = open_session(path, str(data))
    session.model.load_state_dict(state["model"])
    if lengths[0] is not None:
        settings = give_length_bins(session, *lengths)
        state["cfg"]["model"] = {**state["cfg"]["model"], **settings}
    batches = sample_batches(session.iterator, number, seed)
    samples = collate(session.dataset, progress(batches, "recalibrating"), session.model)
    used = recalibrate_model(session.model, samples, run_norms, population)
    rest = {name: value for name, value in state["model"].items() if _STATISTICS not in name}
    own = session.model.state_dict()
    state["model"] = rest | {name: own[name].cpu() for name in own if _STATISTICS in name}
    note = {"batches": used, "seed": seed, "population": population}
    if lengths[0] is not None:
        note["length_bins"] = lengths[0]
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
    length_bins: LengthBins = None,
    length_edges: LengthEdges = RULES[0],
) -> None:
    """Average the weights of checkpoints and recalibrate the population statistics."""
    check_population(population, ESTIMATES)
    check_length_bins(length_bins, length_edges)
    if recalibrate is None and length_bins is not None:
        raise ValueError("--length-bins needs --recalibrate DATA-BIN: bins are estimated on data.")
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
        lengths = length_bins, length_edges
        state = _recalibrate_state(
            paths[-1], state, recalibrate, batches, seed, population, lengths
        )
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
    length_bins: LengthBins = None,
    length_edges: LengthEdges = RULES[0],
) -> None:
    """Estimate the population statistics of a checkpoint anew on training data."""
    check_population(population, ESTIMATES)
    check_length_bins(length_bins, length_edges)
    state = moving_average(checkpoint) if ema else read_checkpoint(checkpoint)
    lengths = length_bins, length_edges
    state = _recalibrate_state(checkpoint, state, data, batches, seed, population, lengths)
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
    if folded["by_length"]:
        typer.echo(
            f"{len(folded['by_length'])} norms with bins of sentence lengths stay as they are: a "
            "linear layer cannot take in a scale and shift that each sentence looks up"
        )
    typer.echo(f"wrote {output}")
