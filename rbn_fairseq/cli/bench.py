"""Verbs that measure speed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.cli import bench_norms
from rbn_fairseq.cli.bench_options import Rounds, Threads
from rbn_fairseq.cli.options import Device, Json, Overwrite, UserDir, check_json, choose_device

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Measure speed: norms, training, translation.",
    epilog="Times are ratios, interleaved in one run. On the CPU freed memory is kept (glibc's "
    "mallopt): page faults would fall on one setting or another by chance.",
)
app.command("norm")(bench_norms.norm)
app.command("scaling")(bench_norms.scaling)

_PASS_ON = {"allow_extra_args": True}
_Data = Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Data for fairseq.")]

_Settings = Annotated[
    Optional[list[str]],
    typer.Option(
        help="`NAME: OPTIONS` of fairseq-train, or the name of a default (repeatable); the first "
        "is the reference. (default: `fairseq`: its own model of the same sizes, task and "
        "criterion; `layer`; `batch` in the encoder; `rbn`: the same with the penalty)",
        show_default=False,
    ),
]
_Mixing = Annotated[
    Optional[str],
    typer.Option(
        metavar="K",
        help="The last setting also on batches of --length-mixing K (several joined by commas).",
    ),
]


def _check(data: Path, json: Optional[Path], overwrite: bool, device: Optional[str]) -> str:
    """Refuse, before any work, what cannot be read, written or measured on; choose the device."""
    from rbn_fairseq.measuring.data_bin import check_data

    check_data(str(data))
    check_json(json, overwrite=overwrite)
    return choose_device(device)


@contextmanager
def _measuring(threads: int, keep_memory: bool = True) -> Iterator[None]:
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.machine import threads as with_threads
    from rbn_fairseq.cli.bench_output import quiet

    if keep_memory:
        keep_freed_memory()
    with quiet(), with_threads(threads):
        yield


def _settings(
    given: Optional[list[str]], mixing: Optional[str], common: list[str]
) -> dict[str, list[str]]:
    from rbn_fairseq.bench.named_settings import SETTINGS, add_mixing, read_settings

    settings = read_settings(given or SETTINGS, common)
    return settings if mixing is None else add_mixing(settings, mixing)


@app.command(context_settings=_PASS_ON)
def train(
    context: typer.Context,
    data: _Data,
    setting: _Settings = None,
    mixing: _Mixing = None,
    rounds: Rounds = 10,
    updates: Annotated[int, typer.Option(min=1, help="Updates a turn.")] = 2,
    device: Device = None,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time training updates of several settings, in turn, per real token; their memory.

    Each setting has batches of its own, new ones every round; where options make the same
    batches, they are the same. Ratios are those of the times per real token, source and target,
    and of peaks of memory. Size of batches, seed and precision must be the same for all.
    Where settings are called `batch` and `rbn`, their difference is shown as the penalty's.
    What follows `--` are options of fairseq-train for all settings, in the place of
    `--arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam --lr 0.0005
    --max-tokens 4096 --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1`.
    """
    from rbn_fairseq.bench.named_settings import DEFAULTS
    from rbn_fairseq.bench.updates import time_updates
    from rbn_fairseq.cli.bench_output import show

    device = _check(data, json, overwrite, device)
    common = context.args or DEFAULTS.split()
    with _measuring(threads, keep_memory=False):
        settings = _settings(setting, mixing, common)
        rows = time_updates(str(data), settings, common, rounds, updates, device, threads)
    show(rows, json, device)


@app.command(context_settings=_PASS_ON)
def profile(
    context: typer.Context,
    data: _Data,
    setting: _Settings = None,
    mixing: _Mixing = None,
    updates: Annotated[int, typer.Option(min=1, help="Updates that are profiled.")] = 5,
    top: Annotated[int, typer.Option(min=1, help="Operators that are shown.")] = 15,
    device: Device = None,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Show where the time of training updates goes, operator by operator, settings side by side.

    Batches and ratios are as in `rbn bench train`.
    What follows `--` are options of fairseq-train for all settings, in the place of those that
    `rbn bench train` names.
    """
    from rbn_fairseq.bench.named_settings import DEFAULTS
    from rbn_fairseq.bench.profile import profile_updates
    from rbn_fairseq.cli.bench_output import show

    device = _check(data, json, overwrite, device)
    common = context.args or DEFAULTS.split()
    with _measuring(threads):
        settings = _settings(setting, mixing, common)
        rows = profile_updates(str(data), settings, common, updates, top, device, threads)
    show(rows, json, device)


@app.command(context_settings=_PASS_ON)
def generate(
    context: typer.Context,
    data: _Data,
    setting: Annotated[
        Optional[list[str]],
        typer.Option(
            help="`NAME: OPTIONS` of fairseq-train (repeatable); the first is the reference, one "
            "called `none` the floor. (default: `fairseq`, its own model, then `layer`, `batch`, "
            "`folded`, `none` in encoder and decoder, Post-Norm and Pre-Norm)",
            show_default=False,
        ),
    ] = None,
    subset: Annotated[str, typer.Option(help="Of the data.")] = "test",
    batches: Annotated[int, typer.Option(min=1, help="Batches a turn, drawn uniformly.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Tokens of every translation.")] = 20,
    beam: Annotated[int, typer.Option(min=1, help="Width of the search.")] = 5,
    rounds: Rounds = 10,
    device: Device = None,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time the encoder's forward and whole generation of models with random weights, in turn.

    All models generate the same number of tokens. `folded` is what `rbn fold` leaves of `batch`.
    What follows `--` are options of fairseq-train for all settings, in the place of those that
    `rbn bench train` names.
    """
    from rbn_fairseq.bench.generating import PLACEMENTS, default_settings, time_inference
    from rbn_fairseq.bench.named_settings import DEFAULTS, read_settings
    from rbn_fairseq.cli.bench_output import show

    device = _check(data, json, overwrite, device)
    common = context.args or DEFAULTS.split()
    cases = (
        {"given": read_settings(setting, common)}
        if setting
        else {placement: default_settings(placement, common) for placement in PLACEMENTS}
    )
    rows = []
    with _measuring(threads):
        for case, settings in cases.items():
            size = (subset, batches, rounds, beam, steps)
            rows += time_inference(str(data), settings, common, case, *size, device, threads)
    show(rows, json, device)


@app.command(context_settings=_PASS_ON)
def tid(
    context: typer.Context,
    data: _Data,
    rounds: Rounds = 10,
    batches: Annotated[int, typer.Option(min=2, help="Batches a turn.")] = 20,
    device: Device = None,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time what is measured during training, beside the training itself.

    TID in one pass over training batches, and in two as the paper tells; the monitors' defaults.
    What follows `--` are options of fairseq-train, in the place of those that `rbn bench train`
    names and `--norm-encoder batch`.
    """
    from rbn_fairseq.bench.named_settings import DEFAULTS
    from rbn_fairseq.bench.tid import time_measuring
    from rbn_fairseq.cli.bench_output import show

    device = _check(data, json, overwrite, device)
    options = context.args or [*DEFAULTS.split(), "--norm-encoder", "batch"]
    with _measuring(threads):
        rows = time_measuring(str(data), options, rounds, batches, device, threads)
    show(rows, json, device)
