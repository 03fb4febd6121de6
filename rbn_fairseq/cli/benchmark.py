"""Verbs that train and evaluate the runs of the paper's benchmarks, command by command."""

import itertools
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

_TARGET = {"iwslt14": "en", "wmt16": "de"}  # language to translate into
_BATCHES = {"iwslt14": 1, "wmt16": 8}  # micro-batches of an update, over all GPUs
_SEARCH = {
    "iwslt14": ("--beam", "5", "--lenpen", "1", "--max-len-a", "1", "--max-len-b", "50"),
    "wmt16": ("--beam", "4", "--lenpen", "0.6"),
}
_SACREBLEU = ("wmt14/full", "en-de")  # of wmt16
_AVERAGED = 6  # epochs

_Benchmark = Annotated[
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
_Preset = Annotated[
    Optional[str],
    typer.Option(help="`small`: a model and batches for a CPU; `mixed`: batches of 16 lengths."),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print every command instead of running it.")
]


def _resolve(
    benchmark: str,
    norm: str,
    placement: str,
    data: Optional[Path],
    runs: Optional[Path],
    preset: Optional[str],
    dry_run: bool,
) -> tuple[Path, list[str], Path, Path]:
    """Return the recipe, Hydra's overrides for its norm and preset, and where data and runs are."""
    from rbn_fairseq.recipes import choose, find

    recipe = find(f"{benchmark}_{placement}")
    choices = [choose(recipe, "norm", norm, "NORM")]
    if preset:
        choices.append(choose(recipe, "preset", preset))
    data = data or Path("data", benchmark)
    if not (dry_run or (data / "bin" / "about.json").is_file()):
        raise ValueError(
            f"--data: there are no prepared data in `{data}`. `rbn prepare {benchmark}` makes "
            f"them (bash scripts/{benchmark}/prepare.sh)."
        )
    runs = runs or Path("runs", f"{benchmark}-{preset}" if preset else benchmark)
    return recipe, choices, data, runs


def _execute(arguments: Sequence[str], dry_run: bool) -> None:
    """Run an `rbn` command, or print it."""
    text = shlex.join(["rbn", *arguments])
    if dry_run:
        typer.echo(text)
        return
    typer.echo(f"+ {text}", err=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it is stopped, too
    status = subprocess.run([sys.executable, "-m", "rbn_fairseq", *arguments]).returncode
    if status != 0:
        raise typer.Exit(status)


def _is_finished(last: Path) -> bool:
    """Tell whether a training has made all its updates; fairseq would make one more.

    Where it is the epochs that are numbered, fairseq sees to that itself.
    """
    from rbn_fairseq.checkpoints.files import read_checkpoint

    try:
        state = read_checkpoint(last, mmap=True)
    except ValueError:  # there is none, or training mends it, or says why it cannot
        return False
    updates = state["cfg"]["optimization"]["max_update"]
    return bool(updates and state["optimizer_history"][-1]["num_updates"] >= updates)


def run(
    benchmark: _Benchmark,
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
    max_epoch: Annotated[
        Optional[int], typer.Option(min=1, help="Epochs.", show_default="the recipe's")
    ] = None,
    gpus: Annotated[
        int,
        typer.Option(
            min=1,
            help="GPUs of a training. An update has the same micro-batches on any number that "
            "divides them: the rest is accumulated.",
        ),
    ] = 1,
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
    if _BATCHES[benchmark] % gpus:
        raise ValueError(
            f"--gpus {gpus} does not divide the {_BATCHES[benchmark]} micro-batches of an update "
            f"of {benchmark}."
        )
    given = (benchmark, norm, placement, data, runs, preset, dry_run)
    recipe, choices, data, runs = _resolve(*given)
    command = ["hydra-train", "--config-name", recipe.stem, *choices]
    command.append(f'task.data="{data / "bin"}"')
    if max_epoch is not None:
        command.append(f"optimization.max_epoch={max_epoch}")
    if preset != "small":  # which has its own
        command.append(f"optimization.update_freq=[{_BATCHES[benchmark] // gpus}]")
    command.append(f"distributed_training.distributed_world_size={gpus}")
    goes_on = any(text.lstrip("+").startswith("optimization.max_update=") for text in overrides)
    for seed in numbers:
        directory = runs / f"{placement}-{norm}-seed{seed}"
        if not (dry_run or goes_on) and _is_finished(directory / "checkpoint_last.pt"):
            typer.echo(f"{directory.name}: is trained", err=True)
            continue
        places = [f"common.seed={seed}", f'hydra.run.dir="{directory}"']
        _execute([*command, *places, *overrides], dry_run)


def _has_running_statistics(model: Mapping[str, Any]) -> bool:
    """Tell whether any norm of a model has running statistics, by the plans of its settings."""
    from rbn_fairseq.norms import NORMS, NormPlan, PopulationNorm

    places = ("encoder", "encoder_final", "decoder", "decoder_final")
    plans = [NormPlan.parse(str(model.get(f"norm_{place}") or "layer")) for place in places]
    norms = {name for plan in plans for rule in plan.rules for name in rule.norms}
    return any(issubclass(NORMS[name], PopulationNorm) for name in norms & NORMS.keys())


def evaluate(
    benchmark: _Benchmark,
    norm: _Norm,
    placement: _Placement,
    seeds: Annotated[
        list[int],
        typer.Argument(metavar="SEED", help="Numbers; the paper has means of three or more."),
    ],
    data: _Data = None,
    runs: _Where = None,
    preset: _Preset = None,
    dry_run: _DryRun = False,
) -> None:
    """Average, recalibrate, translate and score the runs that `rbn run` trained.

    Averages the last 6 epochs of each run (all, if it was to have fewer), estimates the population
    statistics of the averaged weights anew, translates the test set with and without that, and
    scores: BLEU4 on the tokens (of wmt16 with compounds split), and sacreBLEU. The scores are in
    the run's score.json, and in score_averaged_statistics.json without new statistics; these files,
    average.pt and average_recalibrated.pt are overwritten. A run whose scores are newer than its
    checkpoints is left as it is.
    """
    from omegaconf import OmegaConf

    from rbn_fairseq.checkpoints.files import epoch_checkpoints
    from rbn_fairseq.recipes import compose_settings
    from rbn_fairseq.scoring import fetch_references

    given = (benchmark, norm, placement, data, runs, preset, dry_run)
    recipe, choices, data, runs = _resolve(*given)
    target = _TARGET[benchmark]
    translating = ["generate", str(data / "bin"), "--gen-subset", "test", *_SEARCH[benchmark]]
    translating += "--remove-bpe --batch-size 64 --num-workers 0 --no-progress-bar".split()
    scoring = ["score", "--lang", target, "--reference", str(data / "text" / f"test.{target}")]
    if benchmark == "wmt16":
        raw = data / "raw" / f"test.{target}"
        scoring.append("--compound-split")
        if raw.is_file():
            scoring += ["--raw-reference", str(raw)]
        else:
            scoring += ["--test-set", _SACREBLEU[0], "--language-pair", _SACREBLEU[1]]
            if not dry_run:
                fetch_references(*_SACREBLEU)  # before hours of translating, not after
    for seed in seeds:
        directory = runs / f"{placement}-{norm}-seed{seed}"
        scores, average = directory / "score.json", directory / "average.pt"
        trained = (path.stat().st_mtime_ns for path in directory.glob("checkpoint*.pt"))
        scored = scores.stat().st_mtime_ns if scores.is_file() else 0
        ours = any(directory.glob("average*/generate-test.txt"))  # not of `rbn score` by hand
        if not dry_run and ours and scored > max(trained, default=0):
            typer.echo(f"{directory.name}: is evaluated", err=True)
            continue
        settings: Any = compose_settings(recipe, choices)[0]
        if (directory / ".hydra" / "config.yaml").is_file():
            settings = OmegaConf.load(directory / ".hydra" / "config.yaml")
        last = min(_AVERAGED, settings["optimization"].get("max_epoch") or _AVERAGED)
        if not dry_run and settings["optimization"].get("max_update"):  # may end it sooner
            last = min(last, len(epoch_checkpoints(directory)) or last)
        averaging = ["average", str(directory), "--last", str(last), "--output", str(average)]
        _execute([*averaging, "--overwrite"], dry_run)
        results = {average: scores}
        if _has_running_statistics(settings["model"]):
            recalibrated = directory / "average_recalibrated.pt"
            words = ["recalibrate", str(average), "--data", str(data / "bin")]
            _execute([*words, "--output", str(recalibrated), "--overwrite"], dry_run)
            results = {average: directory / "score_averaged_statistics.json", recalibrated: scores}
        for checkpoint, file in results.items():
            translations = checkpoint.with_suffix("")
            words = ["--path", str(checkpoint), "--results-path", str(translations)]
            _execute([*translating, *words], dry_run)
            words = [str(translations / "generate-test.txt"), "--json", str(file), "--overwrite"]
            _execute([*scoring, *words], dry_run)
