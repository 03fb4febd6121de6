"""Verbs that measure the speed of norms alone."""

import itertools
from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.cli.bench_options import Rounds, Threads, check_figure, numbers
from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.cli.options import Device, Json, Overwrite, UserDir, check_json, choose_device

__all__ = ["norm", "scaling"]

_TOKENS = "1024,4096,16384"
_DTYPES = ("float32", "bfloat16", "float16")

_Norms = Annotated[
    str,
    typer.Option(
        help="Names joined by commas, of `rbn norms` or compositions `a+b`; `torch-batch` is "
        "torch's own batch norm. `layer` is always measured."
    ),
]
_Depth = Annotated[int, typer.Option(min=1, help="Norms one after another.")]


def _check_dtypes(names: list[str]) -> list[str]:
    for name in names:
        if name not in _DTYPES:
            raise ValueError(f"--dtype: unknown `{name}`. Known: {', '.join(_DTYPES)}.")
    return names


def norm(
    data: Annotated[
        Optional[Path],
        typer.Argument(
            metavar="DATA-BIN",
            help="Replay the sentence lengths of its training batches, source and target side.",
        ),
    ] = None,
    norms: _Norms = "batch",
    channels: Annotated[str, typer.Option(help="C, joined by commas.")] = "512",
    tokens: Annotated[
        Optional[str],
        typer.Option(
            help=f"Tokens of a batch, joined by commas, without DATA-BIN. (default: {_TOKENS})"
        ),
    ] = None,
    name: Annotated[
        Optional[str], typer.Option(help="Of the data, for the cases. (default: its directory's)")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a batch of DATA-BIN.")] = 4096,
    batches: Annotated[
        int, typer.Option(min=0, help="Batches of DATA-BIN, drawn uniformly; 0 = all.")
    ] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of that draw.")] = 1,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Only the forward, in evaluation.")
    ] = False,
    depth: _Depth = 12,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16, joined by commas.")
    ] = "float32",
    rounds: Rounds = 20,
    device: Device = None,
    threads: Annotated[str, typer.Option(help="Of torch, on the CPU, joined by commas.")] = "1",
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time norms in turn, as a model calls them: forward and backward in training.

    A time is that of one norm on the real tokens of one batch, the mean over a stack of norms.
    The floor is the time in which memory copies what must be moved:
    five tensors in training, two in evaluation, into as much memory as the norms write. On the
    CPU, freed memory is kept, as page faults would cost as much as the norm and by chance (glibc's
    mallopt).
    """
    from rbn_fairseq.bench.cases import fixed_case
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.norms import Conditions, read_norms, time_norms
    from rbn_fairseq.bench.rows import Row
    from rbn_fairseq.cli.bench_output import quiet, show

    device = choose_device(device)
    check_json(json, overwrite=overwrite)
    widths, counts = numbers("--channels", channels), numbers("--threads", threads)
    if device == "cuda" and len(counts) > 1:
        raise ValueError(f"--threads are the CPU's, but --device is cuda: `{threads}` must be one.")
    if data is not None and tokens:
        raise ValueError("--tokens: DATA-BIN has its own. Leave one of them out.")
    sizes = numbers("--tokens", tokens or _TOKENS)
    chosen, dtypes = read_norms(norms.split(",")), _check_dtypes(dtype.split(","))
    if data is not None:
        from rbn_fairseq.bench.replay import data_cases, name_of
        from rbn_fairseq.measuring.data_bin import check_data

        check_data(str(data))
        with quiet():
            found = data_cases(str(data), name or name_of(data), max_tokens, batches, seed)
        cases = [(case, width) for width in widths for case in found]
    else:
        cases = [(fixed_case(size, width), width) for width in widths for size in sizes]
    keep_freed_memory()
    rows: list[Row] = []
    for number, kind in itertools.product(counts, dtypes):
        for case, width in cases:
            how = Conditions(chosen, width, depth, rounds, device, kind, number, not evaluation)
            rows += time_norms(case, how, f"{case.name}, {number} threads, {kind}")
    show(rows, json, device)


def scaling(
    sweep: Annotated[
        str, typer.Option(help="What grows: `tokens`, `channels`, `layers` or `processes`.")
    ] = "tokens",
    values: Annotated[
        Optional[str], typer.Option(help="That it takes, joined by commas. (default: by sweep)")
    ] = None,
    norms: _Norms = "batch",
    channels: Annotated[int, typer.Option(min=1, help="C.")] = 512,
    tokens: Annotated[int, typer.Option(min=32, help="Of a batch.")] = 4096,
    depth: _Depth = 12,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    rounds: Rounds = 10,
    device: Device = None,
    threads: Threads = 1,
    figure: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="Also draw it: a .png, .svg or .pdf.")
    ] = None,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time norms while one thing grows: tokens, channels, layers, processes.

    As `rbn bench norm`, forward and backward in training. With layers grows the time of all
    their norms, two a layer. With processes (gloo, on the CPU) each has a batch of its own, and
    norms that can share their statistics do; the rows tell how many collectives a norm takes.
    """
    from rbn_fairseq.bench.figure import draw_scaling
    from rbn_fairseq.bench.machine import keep_freed_memory
    from rbn_fairseq.bench.norms import Conditions, read_norms
    from rbn_fairseq.bench.scaling import SWEEPS
    from rbn_fairseq.bench.scaling import sweep as grow
    from rbn_fairseq.cli.bench_output import show

    if sweep not in SWEEPS:
        raise ValueError(f"--sweep: unknown `{sweep}`. Known: {', '.join(SWEEPS)}.")
    if sweep == "processes" and device == "cuda":
        raise ValueError("--sweep processes is measured on the CPU. Leave --device out.")
    device = "cpu" if sweep == "processes" else choose_device(device)
    check_json(json, overwrite=overwrite)
    check_figure(figure, overwrite)
    taken = numbers("--values", values) if values is not None else SWEEPS[sweep].values
    chosen, (kind,) = read_norms(norms.split(",")), _check_dtypes([dtype])
    keep_freed_memory()
    how = Conditions(chosen, channels, depth, rounds, device, kind, threads)
    found = grow(sweep, taken, tokens, how)
    show(list(itertools.chain.from_iterable(found.values())), json, device)
    if figure is not None:
        with plain_errors():
            draw_scaling(figure, SWEEPS[sweep], found)
