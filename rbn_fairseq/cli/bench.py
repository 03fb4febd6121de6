"""Verbs that measure speed."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.cli.options import Device, Json, Overwrite, UserDir, check_json, choose_device
from rbn_fairseq.writing import check_output

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Measure speed and memory: norms, training, translation.",
    epilog="What is compared is timed in turn, in one process, and shown as ratios. On the CPU all "
    "but `train` keep freed memory in the process (glibc's mallopt), as page faults would hit one "
    "setting or another by chance.",
)

_PASS_ON = {"allow_extra_args": True}
_TOKENS = "1024,4096,16384"
_DTYPES = ("float32", "bfloat16", "float16")

_Data = Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Data for fairseq.")]
_Rounds = Annotated[
    int, typer.Option(min=1, help="Number of rounds that are counted; one more warms up.")
]
_Threads = Annotated[int, typer.Option(min=1, help="Number of torch's threads on the CPU.")]

_Norms = Annotated[
    str,
    typer.Option(
        help="Norms to time, joined by commas: names of `rbn norms`, compositions `a+b`, or "
        "`torch-batch`, torch's own batch norm. `layer` is always timed."
    ),
]
_Depth = Annotated[int, typer.Option(min=1, help="Number of norms in the stack.")]
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


def _numbers(option: str, text: str) -> list[int]:
    """Read whole numbers from 1 on, joined by commas.

    Raises:
        ValueError: if one is no whole number, or too small.
    """
    if not re.fullmatch("0*[1-9][0-9]*(,0*[1-9][0-9]*)*", text):
        raise ValueError(
            f"{option} must be whole numbers from 1 on, joined by commas, but is `{text}`."
        )
    return [int(part) for part in text.split(",")]


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _DTYPES:
            raise ValueError(f"--dtype: unknown `{name}`. Known: {', '.join(_DTYPES)}.")
    return names


@contextmanager
def _timing(data: Path, json: Optional[Path], overwrite: bool, threads: int) -> Iterator[None]:
    """Check data and output before any work; set torch's threads, and silence fairseq."""
    from rbn_fairseq.bench.machine import threads as with_threads
    from rbn_fairseq.cli.bench_output import quiet
    from rbn_fairseq.measuring.data_bin import check_data

    check_data(str(data))
    check_json(json, overwrite=overwrite)
    with quiet(), with_threads(threads):
        yield


@app.command()
def norm(
    data: Annotated[
        Optional[Path],
        typer.Argument(
            metavar="DATA-BIN",
            help="Replay the sentence lengths of its training batches, source and target side.",
        ),
    ] = None,
    norms: _Norms = "batch",
    channels: Annotated[str, typer.Option(help="Numbers of channels, joined by commas.")] = "512",
    tokens: Annotated[
        Optional[str],
        typer.Option(
            help=f"Tokens of a batch, joined by commas; without DATA-BIN. (default: {_TOKENS})"
        ),
    ] = None,
    name: Annotated[
        Optional[str],
        typer.Option(help="What the table calls the data. (default: the directory's name)"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch of DATA-BIN.")] = 4096,
    batches: Annotated[
        int, typer.Option(min=0, help="Number of batches of DATA-BIN, a uniform sample; 0 = all.")
    ] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of that sample.")] = 1,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Time the forward alone, in evaluation.")
    ] = False,
    depth: _Depth = 12,
    dtype: Annotated[
        str,
        typer.Option(
            help="Types of the activations: float32, bfloat16 or float16, joined by commas."
        ),
    ] = "float32",
    rounds: _Rounds = 20,
    device: Device = None,
    threads: Annotated[
        str, typer.Option(help="Numbers of torch's threads on the CPU, joined by commas.")
    ] = "1",
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time norms in turn, as a model calls them: forward and backward in training.

    A time is that of one norm on the real tokens of one batch, the mean over a stack of norms.
    The floor is the time in which memory copies what must be moved: five tensors in training, two
    in evaluation, into as much memory as the norms write.
    """
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.norm_times import Conditions, fixed_case, read_norms, time_norms
    from rbn_fairseq.bench.rounds import Row
    from rbn_fairseq.cli.bench_output import quiet, show

    device = choose_device(device)
    check_json(json, overwrite=overwrite)
    widths, counts = _numbers("--channels", channels), _numbers("--threads", threads)
    if device == "cuda" and len(counts) > 1:
        raise ValueError(f"--threads are the CPU's, but --device is cuda: `{threads}` must be one.")
    if data is not None and tokens:
        raise ValueError("--tokens: DATA-BIN has its own. Leave one of them out.")
    sizes = _numbers("--tokens", tokens or _TOKENS)
    chosen, dtypes = read_norms(norms.split(",")), _dtypes(dtype)
    if data is not None:
        from rbn_fairseq.bench.trainers import data_cases, name_of
        from rbn_fairseq.measuring.data_bin import check_data

        check_data(str(data))
        with quiet():
            replayed = data_cases(str(data), name or name_of(data), max_tokens, batches, seed)
        cases = [(case, width) for width in widths for case in replayed]
    else:
        cases = [(fixed_case(size, width), width) for width in widths for size in sizes]
    keep_freed_memory()
    rows: list[Row] = []
    for number, kind in itertools.product(counts, dtypes):
        for case, width in cases:
            conditions = Conditions(
                chosen, width, depth, rounds, device, kind, number, not evaluation
            )
            rows += time_norms(case, conditions, f"{case.name}, {number} threads, {kind}")
    show(rows, json, device)


@app.command()
def scaling(
    sweep: Annotated[
        str, typer.Option(help="What grows: `tokens`, `channels` or `layers`.")
    ] = "tokens",
    values: Annotated[
        Optional[str], typer.Option(help="Its values, joined by commas. (default: by sweep)")
    ] = None,
    norms: _Norms = "batch",
    channels: Annotated[int, typer.Option(min=1, help="Number of channels.")] = 512,
    tokens: Annotated[int, typer.Option(min=32, help="Tokens of a batch.")] = 4096,
    depth: _Depth = 12,
    dtype: Annotated[
        str, typer.Option(help="Type of the activations: float32, bfloat16 or float16.")
    ] = "float32",
    rounds: _Rounds = 10,
    device: Device = None,
    threads: _Threads = 1,
    figure: Annotated[
        Optional[Path],
        typer.Option(metavar="FILE", help="Also draw the times: a .png, .svg or .pdf."),
    ] = None,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time norms while one thing grows: tokens, channels or layers.

    As `rbn bench norm`, forward and backward in training. With layers a time is that of all their
    norms, two a layer.
    """
    from rbn_fairseq.bench.growth import SWEEPS, draw_growth, time_growth
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.norm_times import Conditions, read_norms
    from rbn_fairseq.cli.bench_output import show

    if sweep not in SWEEPS:
        raise ValueError(f"--sweep: unknown `{sweep}`. Known: {', '.join(SWEEPS)}.")
    device = choose_device(device)
    check_json(json, overwrite=overwrite)
    if figure is not None:
        if figure.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"--figure must end with .png, .svg or .pdf, but is `{figure}`.")
        check_output("--figure", figure, overwrite=overwrite)
    sizes = SWEEPS[sweep] if values is None else _numbers("--values", values)
    chosen, (kind,) = read_norms(norms.split(",")), _dtypes(dtype)
    keep_freed_memory()
    conditions = Conditions(chosen, channels, depth, rounds, device, kind, threads)
    grown = time_growth(sweep, sizes, tokens, conditions)
    show(list(itertools.chain.from_iterable(grown.values())), json, device)
    if figure is not None:
        with plain_errors():
            draw_growth(figure, sweep, grown)


@app.command(context_settings=_PASS_ON)
def train(
    context: typer.Context,
    data: _Data,
    setting: _Settings = None,
    mixing: _Mixing = None,
    rounds: _Rounds = 10,
    updates: Annotated[int, typer.Option(min=1, help="Updates of a setting in a round.")] = 2,
    device: Device = None,
    threads: _Threads = 1,
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
    from rbn_fairseq.bench.trainers import DEFAULTS, SETTINGS, add_mixing, read_settings
    from rbn_fairseq.bench.training_times import time_updates
    from rbn_fairseq.cli.bench_output import show

    device, common = choose_device(device), context.args or DEFAULTS.split()
    with _timing(data, json, overwrite, threads):
        settings = read_settings(setting or SETTINGS, common)
        if mixing is not None:
            settings = add_mixing(settings, mixing)
        rows = time_updates(str(data), settings, common, rounds, updates, device, threads)
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
    subset: Annotated[str, typer.Option(help="Which part of the data is translated.")] = "test",
    batches: Annotated[int, typer.Option(min=1, help="Batches of a round, drawn uniformly.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Tokens of every translation.")] = 20,
    beam: Annotated[int, typer.Option(min=1, help="Width of the beam search.")] = 5,
    rounds: _Rounds = 10,
    device: Device = None,
    threads: _Threads = 1,
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
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.trainers import DEFAULTS, read_settings
    from rbn_fairseq.cli.bench_output import show

    device, common = choose_device(device), context.args or DEFAULTS.split()
    rows = []
    with _timing(data, json, overwrite, threads):
        keep_freed_memory()
        if setting:
            cases = {"given": read_settings(setting, common)}
        else:
            cases = {placement: default_settings(placement, common) for placement in PLACEMENTS}
        for case, settings in cases.items():
            size = (subset, batches, rounds, beam, steps)
            rows += time_inference(str(data), settings, common, case, *size, device, threads)
    show(rows, json, device)


@app.command(context_settings=_PASS_ON)
def tid(
    context: typer.Context,
    data: _Data,
    rounds: _Rounds = 10,
    batches: Annotated[int, typer.Option(min=2, help="Batches of a round.")] = 20,
    device: Device = None,
    threads: _Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time measurements during training, as shares of the training itself.

    TID in one pass over training batches, and in two as in the paper; conditioning. What follows
    `--` are options of fairseq-train, in the place of those that `rbn bench train` names and
    `--norm-encoder batch`.
    """
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.tid_times import time_measuring
    from rbn_fairseq.bench.trainers import DEFAULTS
    from rbn_fairseq.cli.bench_output import show

    device = choose_device(device)
    options = context.args or [*DEFAULTS.split(), "--norm-encoder", "batch"]
    with _timing(data, json, overwrite, threads):
        keep_freed_memory()
        rows = time_measuring(str(data), options, rounds, batches, device, threads)
    show(rows, json, device)
