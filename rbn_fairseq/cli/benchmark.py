"""Verbs that train and evaluate the runs of the paper's benchmarks, command by command."""

import importlib.util
import itertools
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from rbn_fairseq.writing import unfinished

__all__ = ["evaluate", "run"]

_AVERAGED = 6  # epochs
_MALLOC = {  # glibc would return memory at every update of a small model
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
}
_SACREBLEU = ("wmt14/full", "en-de")


@dataclass(frozen=True)
class Benchmark:
    """Target language, batch and search of a benchmark.

    Attributes:
        target: language to translate into.
        batches: micro-batches of an update, over all GPUs.
        search: options of generation.
    """

    target: str
    batches: int
    search: tuple[str, ...]


BENCHMARKS = {
    "iwslt14": Benchmark(
        "en", 1, ("--beam", "5", "--lenpen", "1", "--max-len-a", "1", "--max-len-b", "50")
    ),
    "wmt16": Benchmark("de", 8, ("--beam", "4", "--lenpen", "0.6")),
}

_Name = Annotated[
    Literal["iwslt14", "wmt16"],
    typer.Argument(metavar="BENCHMARK", help="`iwslt14` (De-En) or `wmt16` (En-De)."),
]
_Norm = Annotated[
    str,
    typer.Argument(
        metavar="NORM",
        help="ln, bn, rbn (the paper's convention), rbn_official (the authors' published weights), "
        "or any other norm of `rbn recipes`.",
    ),
]
_Placement = Annotated[
    Literal["post", "pre"], typer.Argument(metavar="PLACEMENT", help="`post` or `pre`.")
]
_Data = Annotated[
    Optional[Path],
    typer.Option(metavar="DIR", help="What `rbn prepare` made.", show_default="data/BENCHMARK"),
]
_Where = Annotated[
    Optional[Path],
    typer.Option(
        "--runs",
        metavar="DIR",
        help="Where runs go.",
        show_default="runs/BENCHMARK; with --preset, runs/BENCHMARK-PRESET",
    ),
]
_Preset = Annotated[Optional[str], typer.Option(help="`small`: a model and batches for a CPU.")]
_Epochs = Annotated[
    Optional[int],
    typer.Option("--max-epoch", min=1, help="Epochs.", show_default="the recipe's"),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print every command instead of running it.")
]


class _Runs:
    """Runs of a benchmark with one norm and placement.

    Args:
        name: of the benchmark.
        norm: as in recipes.
        placement: ``post`` or ``pre``.
        data: what `rbn prepare` made; ``None`` = ``data/BENCHMARK``.
        directory: that of the runs; ``None`` = ``runs/BENCHMARK`` or ``runs/BENCHMARK-PRESET``.
        preset: of the recipe.
        dry_run: whether commands are printed instead of run.

    Raises:
        ValueError: if there is no such norm or preset, or no data; the message names the option.
    """

    def __init__(
        self,
        name: str,
        norm: str,
        placement: str,
        data: Optional[Path],
        directory: Optional[Path],
        preset: Optional[str],
        dry_run: bool,
    ) -> None:
        from rbn_fairseq.recipes import choose, find

        self.name = name
        self.benchmark = BENCHMARKS[name]
        self.label = f"{placement}-{norm}"
        self.data = data or Path("data", name)
        self.directory = directory or Path("runs", f"{name}-{preset}" if preset else name)
        self.preset = preset
        self.dry_run = dry_run
        self.recipe = find(f"{name}_{placement}")
        #: Hydra's overrides of the norm and the preset.
        self.choices = [choose(self.recipe, "norm", norm, "NORM")]
        if preset:
            self.choices.append(choose(self.recipe, "preset", preset))
        if not dry_run and not (self.data / "bin" / "about.json").is_file():
            raise ValueError(
                f"--data: there are no prepared data in `{self.data}`. `rbn prepare {name}` "
                f"makes them (bash scripts/{name}/prepare.sh)."
            )

    def run(self, seed: int | str) -> Path:
        """Return the directory of a seed's run."""
        return self.directory / f"{self.label}-seed{seed}"

    def execute(self, command: Sequence[str], output: Optional[Path] = None) -> None:
        """Run a command, or print it; ``output`` is written when it has run to its end.

        Raises:
            typer.Exit: with the command's exit status, if it fails.
        """
        text = shlex.join(command) + ("" if output is None else f" > {shlex.quote(str(output))}")
        if self.dry_run:
            typer.echo(text)
            return
        typer.echo(f"+ {text}", err=True)
        environment = _environment() | (_MALLOC if self.preset == "small" else {})
        with ExitStack() as files:
            stdout = None
            if output is not None:
                stdout = files.enter_context(files.enter_context(unfinished(output)).open("wb"))
            status = subprocess.run(command, env=environment, stdout=stdout).returncode
            if status != 0:
                raise typer.Exit(status)


def _environment() -> dict[str, str]:
    """Return the environment of commands: `rbn` and torchrun are those beside this one."""
    program = Path(sys.argv[0])
    here = program.resolve() if program.name == "rbn" else Path(sys.executable)
    path = os.pathsep.join((str(here.parent), os.environ.get("PATH", os.defpath)))
    # Hydra and torch have many warnings, about fairseq's own code.
    return {"PYTHONWARNINGS": "ignore", **os.environ, "PATH": path}


def _hydra_path(path: Path | str) -> str:
    """Quote a path so that Hydra reads it as it is."""
    text = str(path)
    if re.fullmatch(r"[A-Za-z0-9_./-]+", text):
        return text
    return "'" + text.replace("'", "\\'") + "'"


def _is_finished(runs: _Runs, seed: str, overrides: Iterable[str]) -> bool:
    """Tell whether a training has made all its updates; fairseq would make one more.

    Where it is the epochs that are numbered, fairseq sees to that itself.
    """
    from rbn_fairseq.checkpoints.files import read_checkpoint
    from rbn_fairseq.recipes import compose_settings

    last = runs.run(seed) / "checkpoint_last.pt"
    if runs.dry_run or not last.is_file():
        return False
    numbers = [text for text in overrides if text.startswith("optimization.max_update=")]
    updates = compose_settings(runs.recipe, [*runs.choices, *numbers])[0]["optimization"]
    if not updates.get("max_update"):
        return False
    try:
        state = read_checkpoint(last, mmap=True)
    except ValueError:  # training mends it, or says why it cannot
        return False
    return bool(state["optimizer_history"][-1]["num_updates"] >= updates["max_update"])


def _launch(runs: _Runs, launcher: str, gpus: int, nodes: int, master: Optional[str]) -> list[str]:
    """Return the words that start a training.

    Raises:
        ValueError: if the options do not go together.
    """
    batches = runs.benchmark.batches
    if batches % (gpus * nodes):
        raise ValueError(
            f"--gpus {gpus} x --nodes {nodes} does not divide the {batches} micro-batches of an "
            f"update of {runs.name}."
        )
    if launcher == "local":
        if nodes > 1:
            raise ValueError(f"--nodes {nodes} needs --launcher torchrun or slurm.")
        return ["rbn", "hydra-train"]
    if launcher == "slurm":
        if not (runs.dry_run or importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher")):
            raise ValueError(
                "--launcher slurm needs Hydra's plugin: pip install hydra-submitit-launcher."
            )
        return ["rbn", "hydra-train", "-m"]
    words = ["torchrun", "--nproc_per_node", str(gpus)]
    if nodes == 1:
        words.append("--standalone")
    elif master is None:
        raise ValueError(f"--nodes {nodes} needs --master HOST:PORT, the same on all nodes.")
    else:
        words += ["--nnodes", str(nodes), "--rdzv_backend", "c10d", "--rdzv_endpoint", master]
        words += ["--rdzv_id", f"{runs.name}-{runs.label}"]
    return [*words, "--no-python", "rbn", "hydra-train"]


def run(
    benchmark: _Name,
    norm: _Norm,
    placement: _Placement,
    seeds: Annotated[
        list[str],
        typer.Argument(
            metavar="SEED",
            help="Numbers; the paper has means of three or more. Behind `--` overrides for Hydra, "
            "such as common.fp16=true (faster on a GPU; the recipe is fp32).",
        ),
    ],
    data: _Data = None,
    runs: _Where = None,
    preset: _Preset = None,
    max_epoch: _Epochs = None,
    gpus: Annotated[
        int,
        typer.Option(
            min=1,
            help="GPUs of each machine. An update has the same micro-batches on any number that "
            "divides them: the rest is accumulated.",
        ),
    ] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    launcher: Annotated[
        Literal["local", "torchrun", "slurm"],
        typer.Option(
            help="`local`: fairseq starts a process a GPU on this machine. `torchrun`: the same by "
            "torchrun; with --nodes call this on every machine, with the same --master. `slurm`: "
            "one job a seed, with the settings of configs/launcher/slurm.yaml; the command waits "
            "for its jobs, do not call it again while they run. On several machines data and runs "
            "must be on a disk that all share."
        ),
    ] = "local",
    master: Annotated[
        Optional[str], typer.Option(metavar="HOST:PORT", help="For torchrun on several machines.")
    ] = None,
    dry_run: _DryRun = False,
) -> None:
    """Train runs of a benchmark by its recipe, one a seed, in RUNS/PLACEMENT-NORM-seedSEED.

    What was cut off goes on from its last checkpoint; what is finished is not trained again.
    """
    numbers = list(itertools.takewhile(str.isdecimal, seeds))
    overrides = seeds[len(numbers) :]
    wrong = [text for text in overrides if "=" not in text and not text.startswith("~")]
    if wrong or not numbers:
        raise ValueError(
            "SEED must be one or more numbers, before overrides of Hydra, but there is "
            f"`{(wrong or overrides)[0]}`."
        )
    all_runs = _Runs(benchmark, norm, placement, data, runs, preset, dry_run)
    command = _launch(all_runs, launcher, gpus, nodes, master)
    left = [seed for seed in numbers if not _is_finished(all_runs, seed, overrides)]
    for seed in sorted(set(numbers) - set(left)):
        typer.echo(f"{all_runs.run(seed).name}: is trained", err=True)
    if not left:
        return
    world = gpus * nodes
    command += ["--config-name", all_runs.recipe.stem, *all_runs.choices]
    command.append(f"task.data={_hydra_path(all_runs.data / 'bin')}")
    if max_epoch is not None:
        command.append(f"optimization.max_epoch={max_epoch}")
    if preset is None:
        command.append(f"optimization.update_freq=[{all_runs.benchmark.batches // world}]")
    command.append(f"distributed_training.distributed_world_size={world}")
    if launcher == "slurm":
        settings = [f"hydra.launcher.nodes={nodes}", f"hydra.launcher.gpus_per_node={gpus}"]
        if nodes > 1:  # on one machine fairseq makes a port of the job's number
            port = random.SystemRandom().randrange(20_000, 40_000)
            settings.append(f"distributed_training.distributed_port={port}")
        settings.append(f"hydra.sweep.dir={_hydra_path(all_runs.directory)}")
        settings.append(f"hydra.sweep.subdir={all_runs.label}-seed${{common.seed}}")
        seeds_of_jobs = f"common.seed={','.join(left)}"
        all_runs.execute([*command, "launcher=slurm", *settings, seeds_of_jobs, *overrides])
        return
    if launcher == "local":  # fairseq would count SLURM's GPUs instead
        for name in ("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"):
            os.environ.pop(name, None)
    for seed in left:
        place = f"hydra.run.dir={_hydra_path(all_runs.run(seed))}"
        all_runs.execute([*command, f"common.seed={seed}", place, *overrides])


def _has_running_statistics(runs: _Runs, seed: int) -> bool:
    """Tell whether any norm of a run has running statistics, by the plans it was trained with."""
    from omegaconf import OmegaConf

    from rbn_fairseq.norms import NORMS, NormPlan, PopulationNorm
    from rbn_fairseq.recipes import compose_settings

    settings = runs.run(seed) / ".hydra" / "config.yaml"
    if runs.dry_run or not settings.is_file():
        model = compose_settings(runs.recipe, runs.choices)[0]["model"]
    else:
        model = OmegaConf.load(settings).model
    options = (f"norm_{side}{final}" for side in ("encoder", "decoder") for final in ("", "_final"))
    plans = (NormPlan.parse(str(model[option])) for option in options if model.get(option))
    norms = {name for plan in plans for rule in plan.rules for name in rule.norms}
    return any(issubclass(NORMS[name], PopulationNorm) for name in norms & NORMS.keys())


def _is_fresh(path: Path, source: Path) -> bool:
    """Tell whether a file was made after its source."""
    if not path.exists():
        return False
    return not source.exists() or path.stat().st_mtime_ns > source.stat().st_mtime_ns


def _score(runs: _Runs, checkpoint: Path, scores: Path) -> None:
    """Translate the test set with a checkpoint, and score the translations."""
    generated = checkpoint.with_name(f"{checkpoint.stem}.generated.txt")
    target = runs.benchmark.target
    if runs.dry_run or not _is_fresh(generated, checkpoint):
        command = ["rbn", "generate", str(runs.data / "bin"), "--path", str(checkpoint)]
        command += ["--gen-subset", "test", *runs.benchmark.search, "--remove-bpe"]
        command += ["--batch-size", "64", "--num-workers", "0", "--no-progress-bar"]
        runs.execute(command, generated)
    if runs.dry_run or not _is_fresh(scores, generated):
        command = ["rbn", "score", str(generated), "--lang", target]
        command += ["--reference", str(runs.data / "text" / f"test.{target}")]
        if runs.name == "wmt16":
            command.append("--compound-split")
            if _raw_reference(runs).is_file():
                command += ["--raw-reference", str(_raw_reference(runs))]
            else:
                command += ["--test-set", _SACREBLEU[0], "--language-pair", _SACREBLEU[1]]
        runs.execute([*command, "--json", str(scores), "--overwrite"])


def _raw_reference(runs: _Runs) -> Path:
    return runs.data / "raw" / f"test.{runs.benchmark.target}"


def evaluate(
    benchmark: _Name,
    norm: _Norm,
    placement: _Placement,
    seeds: Annotated[
        list[int],
        typer.Argument(metavar="SEED", help="Numbers; the paper has means of three or more."),
    ],
    data: _Data = None,
    runs: _Where = None,
    preset: _Preset = None,
    max_epoch: _Epochs = None,
    last: Annotated[
        Optional[int],
        typer.Option(
            min=1,
            help="How many epochs to average.",
            show_default="6, or --max-epoch where that is fewer",
        ),
    ] = None,
    dry_run: _DryRun = False,
) -> None:
    """Average, recalibrate, translate and score the runs that `rbn run` trained.

    Averages the last epochs of each run, estimates the population statistics of the averaged
    weights anew, translates the test set with and without that, and scores: BLEU4 on the tokens
    (of wmt16 with compounds split), and sacreBLEU. The scores are in the run's score.json, and in
    score_averaged_statistics.json without new statistics. What is up to date is not done again.
    """
    from rbn_fairseq.scoring import fetch_references

    all_runs = _Runs(benchmark, norm, placement, data, runs, preset, dry_run)
    if benchmark == "wmt16" and not (dry_run or _raw_reference(all_runs).is_file()):
        fetch_references(*_SACREBLEU)  # before hours of translating, not after
    number = str(last or min(_AVERAGED, max_epoch or _AVERAGED))
    for seed in seeds:
        directory = all_runs.run(seed)
        checkpoint = directory / "checkpoint_last.pt"
        if not (dry_run or checkpoint.is_file()):
            raise ValueError(
                f"--runs: there is no training in `{directory}`. `rbn run {benchmark} {norm} "
                f"{placement} {seed}` makes it."
            )
        running = _has_running_statistics(all_runs, seed)
        average, note = directory / "average.pt", directory / ".averaged"
        same = note.is_file() and note.read_text().strip() == number
        if dry_run or not (same and _is_fresh(average, checkpoint)):
            words = ["rbn", "average", str(directory), "--last", number]
            all_runs.execute([*words, "--output", str(average), "--overwrite"])
            if not dry_run:
                note.write_text(f"{number}\n")
        if not running:
            _score(all_runs, average, directory / "score.json")
            continue
        recalibrated = directory / "average_recalibrated.pt"
        if dry_run or not _is_fresh(recalibrated, average):
            words = ["rbn", "recalibrate", str(average), "--data", str(all_runs.data / "bin")]
            all_runs.execute([*words, "--output", str(recalibrated), "--overwrite"])
        _score(all_runs, average, directory / "score_averaged_statistics.json")
        _score(all_runs, recalibrated, directory / "score.json")
