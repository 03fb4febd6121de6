"""The verb that trains."""

import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Optional
from unittest import mock

import typer

import rbn_fairseq
from rbn_fairseq.cli.errors import MISSING_DATA
from rbn_fairseq.cli.fairseq_commands import log_as_fairseq, plugin_options, usage_errors, value_of
from rbn_fairseq.cli.options import UserDir

#: Options that choose norms, and what a run directory's name says in front of their values.
_PLANS = {"--norm-encoder": "", "--norm-decoder": "decoder_", "--norm-placement": ""}
_OF_EMBEDDINGS = r"share_|(en|de)coder_embed_path|adaptive_softmax_cutoff"
_STACKS = {"--norm-encoder": "--norm-decoder", "--norm-decoder": "--norm-encoder"}
#: Other options that make another model, by what the name says.
_FLAGS = {"--norm-unit-embeddings": "fixnorm", "--norm-small-init": "small_init"}


def train(
    context: typer.Context,
    recipe: Annotated[
        Optional[str],
        typer.Option(
            help="Settings to begin with, of `rbn recipes` or a file; options that you give "
            "override them.",
            show_default="`default`, where there is no --arch",
        ),
    ] = None,
    norm: Annotated[
        Optional[str],
        typer.Option(
            help="With a recipe: another norm, such as ln, bn, rbn. With --norm-encoder, "
            "--norm-decoder or --norm-placement it is ln, so without a penalty.",
            show_default="the recipe's",
        ),
    ] = None,
    preset: Annotated[
        Optional[str],
        typer.Option(
            help="With a recipe: `small`, a model for CPUs; `mixed`, batches of 16 lengths."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check options, data and model; train nothing.")
    ] = False,
    user_dir: UserDir = None,
) -> None:
    """Train: `rbn train DATA-BIN`, or fairseq-train with the plugin put in.

    Every option of fairseq-train is one here: `rbn options` lists those of the plugin,
    `fairseq-train --help` all others. The log also goes to SAVE_DIR/train.log, with progress as
    JSON lines, unless --log-file says where.
    """
    log_as_fairseq()
    arguments = list(context.args)
    if not arguments:
        raise ValueError(MISSING_DATA)
    rbn_fairseq.register()
    if recipe is None and not value_of(arguments, "--arch", "-a"):
        recipe = "default"
    if recipe is not None:
        chosen = {"norm": norm, "preset": preset}
        arguments = _with_recipe(arguments, user_dir, recipe, chosen)
    elif norm or preset:
        given = f"--norm {norm}" if norm else f"--preset {preset}"
        raise ValueError(
            f"{given} is for recipes, and --arch is given instead: add --recipe NAME, or give "
            f"{'--norm-encoder' if norm else 'its options one by one'}."
        )
    if not value_of(arguments, "--distributed-world-size"):  # fairseq takes every GPU
        arguments += ["--distributed-world-size", "1"]
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed

    parsed = _parse(arguments + plugin_options(arguments, user_dir))
    cfg = convert_namespace_to_omegaconf(parsed)
    if check:
        logging.getLogger().setLevel(logging.WARNING)
        _check(cfg)
        return
    distributed.call_main(cfg, _train)


def _with_recipe(
    arguments: list[str], user_dir: Optional[Path], name: str, chosen: Mapping[str, Optional[str]]
) -> list[str]:
    """Put a recipe's options before the given ones, and print the resulting command."""
    from rbn_fairseq.callbacks.start import LOSSES
    from rbn_fairseq.checkpoints.mending import LAST
    from rbn_fairseq.measuring.adapters import LABEL
    from rbn_fairseq.measuring.data_bin import share_a_dictionary
    from rbn_fairseq.models.kinds import TRANSLATION, kind_of
    from rbn_fairseq.recipes import as_options, compose_recipe

    data, *given = arguments
    if data.startswith("-"):
        raise ValueError(f"With a recipe, DATA-BIN comes first. {MISSING_DATA}")
    plans = ((label, value_of(given, option)) for option, label in _PLANS.items())
    own = re.sub(r"[^\w.+-]", "_", "-".join(label + plan for label, plan in plans if plan))
    of_recipe = not own or chosen["norm"] is not None  # whose penalty is for its norm
    composed, norm = compose_recipe(name, chosen)
    if not of_recipe and norm != "None":  # which a recipe without that group has
        composed, norm = compose_recipe(name, {**chosen, "norm": "ln"})
    if composed.get("task", {}).get("_name") == TRANSLATION.task:
        if Path(data.split(os.pathsep)[0], f"dict.{LABEL}.txt").is_file():
            raise ValueError(
                f"`{data}` has texts with labels or tags, and the recipe `{name}` translates. Name "
                "another with --recipe, such as imdb_post or conll2003_post (`rbn recipes`)."
            )
        model = composed.setdefault("model", {})
        given_too = [*model, *(word[2:].replace("-", "_") for word in given if word[:2] == "--")]
        told = any(re.match(_OF_EMBEDDINGS, key) for key in given_too)
        widths = (
            value_of(given, f"--{side}-embed-dim", default=str(model.get(f"{side}_embed_dim")))
            for side in ("encoder", "decoder")
        )
        alike = len({*widths}) == 1
        if alike and not told and share_a_dictionary(data):
            model["share_all_embeddings"] = True
    settings = as_options(composed)
    _refuse_other_placement(name, norm, [*chain(*settings)], given)
    if value_of(given, "--best-checkpoint-metric") in LOSSES:  # the recipe's may be a score
        maximised = ("--maximize-best-checkpoint-metric",)
        settings = [setting for setting in settings if setting != maximised]
    # Those of the recipe's optimizer, say, where another one is given.
    words = [data, *chain(*settings), *given]
    words += plugin_options(words, user_dir)
    unknown = set(_parse(words, parse_known=True)[1])
    lacks = unknown & _STACKS.keys() if kind_of(value_of(words, "--arch", "-a")) else set()
    if lacks:  # of a model with one stack, whose norms have its name
        settings = [(_STACKS[o], *v) if o in lacks else (o, *v) for o, *v in settings]
    left_out = [option for option, *_ in settings if option in unknown]
    settings = [setting for setting in settings if setting[0] not in unknown]
    words = [*chain(*settings), *given]
    if not value_of(words, "--save-dir"):
        seed = value_of(words, "--seed", default="1")
        flags = [name for option, name in _FLAGS.items() if option in given]
        names = (norm if of_recipe else "", own, *flags, chosen["preset"], f"seed{seed}")
        parts = Path(data.split(os.pathsep)[0]).resolve().parts
        where = Path("runs", Path(name).stem, "-".join(parts[-2:]))
        settings.append(("--save-dir", str(where / "-".join(filter(None, names)))))
    words = [data, *chain(*settings), *given]
    directory = Path(value_of(words, "--save-dir"))
    if not value_of(given, "--save-dir") and (directory / LAST).exists():
        typer.echo(f"goes on with the training in {directory}; --save-dir begins another")
    typer.echo(f"recipe {name}, norm {norm}: rbn train {shlex.join(words)}")
    if left_out:
        typer.echo(f"left out, as what is given has no such options: {', '.join(left_out)}")
    return words


def _refuse_other_placement(recipe: str, norm: str, settings: list[str], given: list[str]) -> None:
    """Refuse an architecture that would make a Pre-Norm recipe Post-Norm, or the reverse.

    So is Pre-Norm with a norm whose weights of the penalty are for Post-Norm.
    """
    from rbn_fairseq.models.kinds import kind_of

    architecture, arch = (value_of(words, "--arch", "-a") for words in (settings, given))
    kind = kind_of(architecture)
    pre = f"--{kind.sides[0] if kind else 'encoder'}-normalize-before"
    own = {"--rbn-mean-weight", "--rbn-std-weight"}
    if norm.endswith("_post") and pre in given and not own & {*given}:
        raise ValueError(
            f"The penalty of the norm `{norm}` is for Post-Norm, and {pre} makes Pre-Norm: add "
            f"--norm {norm.removesuffix('_post')}_pre, or another norm."
        )
    before = architecture.endswith("_pre")
    if kind is None or kind is not kind_of(arch) or arch.endswith("_pre") == before:
        return
    flags = [f"--{side}-normalize-before" for side in kind.sides]
    if not {*flags} & {*settings, *given}:
        other = f"{arch}_pre" if before else arch.removesuffix("_pre")
        way = f"--arch {other}" if other in kind.presets else " ".join(flags)
        more = "" if before else f", or for Pre-Norm {' '.join(flags)} as well"
        raise ValueError(
            f"The recipe `{recipe}` is {'Pre' if before else 'Post'}-Norm, and --arch {arch} is "
            f"not: give {way}{more}, or another recipe."
        )


def _parse(arguments: list[str], **how: Any) -> Any:
    """Parse a training's options by fairseq's parse_args_and_arch, which takes ``how``."""
    # As in fairseq_cli.train.cli_main.
    from fairseq import options

    # fairseq looks for --user-dir in sys.argv, too.
    with usage_errors(), mock.patch.object(sys, "argv", ["rbn train", *arguments]):
        return options.parse_args_and_arch(options.get_training_parser(), arguments, **how)


def _train(cfg: Any) -> None:
    """Train in this process; the first process writes the log."""
    from fairseq.distributed import utils as distributed
    from fairseq_cli.train import main

    from rbn_fairseq.cli.train_log import logged_to

    log_as_fairseq()
    log = Path(cfg.checkpoint.save_dir) / "train.log"
    shown_there = log.exists() and os.path.samestat(log.stat(), os.fstat(1))  # by the shell's >
    elsewhere = cfg.common.log_file is not None or shown_there
    logs = not elsewhere and distributed.is_master(cfg.distributed_training)
    with logged_to(log) if logs else nullcontext():
        main(cfg)


def _check(cfg: Any) -> None:
    """Run fairseq's training up to its first update, and describe it; nothing is written."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer
    from fairseq_cli.train import main

    from rbn_fairseq.callbacks import resume
    from rbn_fairseq.checkpoints.files import read_checkpoint
    from rbn_fairseq.checkpoints.mending import LAST

    load, iterate = checkpoint_utils.load_checkpoint, Trainer.get_train_iterator
    last = Path(cfg.checkpoint.save_dir) / LAST
    processes = cfg.distributed_training.distributed_world_size

    def share(trainer: Any, *arguments: Any, **settings: Any) -> Any:
        _ = trainer.model  # is made for one process
        with mock.patch.object(Trainer, "data_parallel_world_size", processes):
            return iterate(trainer, *arguments, **settings)

    def describe(checkpoint: Any, trainer: Any, **settings: Any) -> None:
        _, iterator = load(checkpoint, trainer, **settings)
        each = f" on each of {processes} processes" if processes > 1 else ""
        typer.echo(
            f"ok: {cfg.model._name}, {len(iterator):,} batches an epoch{each}; "
            f"{trainer.get_num_updates():,} updates so far in {last.parent}"
        )
        raise typer.Exit

    cfg.distributed_training.distributed_world_size = 1
    cfg.common.log_file = None
    if last.exists():
        read_checkpoint(last, mmap=True)  # refuses a damaged one
    with (
        mock.patch.object(checkpoint_utils, "load_checkpoint", describe),
        mock.patch.object(Trainer, "get_train_iterator", share),
        mock.patch.object(checkpoint_utils, "verify_checkpoint_directory"),
        mock.patch.object(resume, "mend"),
    ):
        main(cfg)
