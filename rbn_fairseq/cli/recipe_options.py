"""The options of a training that begins with a recipe."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import typer

from rbn_fairseq.cli.errors import MISSING_DATA
from rbn_fairseq.cli.fairseq_commands import plugin_options, usage_errors, value_of

Settings = list[tuple[str, ...]]  # options, each with its value if it has one

#: Options that say how many processes there are, or where to find out.
PROCESSES = ("--distributed-world-size", "--distributed-port", "--distributed-init-method")
#: Options that choose norms, and what a run directory's name says in front of their values.
_PLANS = {"--norm-encoder": "", "--norm-decoder": "decoder_", "--norm-placement": ""}
#: Others that make another experiment, and what the name calls some of them.
_EXPERIMENT = re.compile(r"--(norm-|rbn-|length-mixing|(en|de)coder-normalize-before)")
_NAMES = {
    "--norm-unit-embeddings": "fixnorm", "--norm-small-init": "small_init",
    "--encoder-normalize-before": "pre", "--decoder-normalize-before": "decoder_pre",
}  # fmt: skip
_OF_EMBEDDINGS = r"share_|(en|de)coder_embed_path|adaptive_softmax_cutoff"
_STACKS = {"--norm-encoder": "--norm-decoder", "--norm-decoder": "--norm-encoder"}


def parse_training(arguments: list[str], **how: Any) -> Any:
    """Parse a training's options by fairseq's parse_args_and_arch, which takes ``how``."""
    # As in fairseq_cli.train.cli_main.
    from fairseq import options

    # fairseq looks for --user-dir in sys.argv, too.
    with usage_errors(), mock.patch.object(sys, "argv", ["rbn train", *arguments]):
        return options.parse_args_and_arch(options.get_training_parser(), arguments, **how)


def with_recipe(
    arguments: list[str], user_dir: Optional[Path], name: str, chosen: Mapping[str, Optional[str]]
) -> list[str]:
    """Put a recipe's options before the given ones, and print the resulting command.

    ``arguments`` are the data directory, and the given options; ``chosen`` the files of the
    recipe's groups, see :func:`~rbn_fairseq.recipes.compose_recipe`.

    Raises:
        ValueError: if the recipe is not for such data, or not for what is given.
    """
    from rbn_fairseq.checkpoints.mending import LAST
    from rbn_fairseq.models.kinds import TRANSLATION
    from rbn_fairseq.recipes import as_options, check_penalty, compose_recipe

    data, *given = arguments
    if data.startswith("-"):
        raise ValueError(f"With a recipe, DATA-BIN comes first. {MISSING_DATA}")
    plan = _own_plan(given)
    of_recipe = not plan or chosen["norm"] is not None  # whose penalty is for its norm
    composed, norm = compose_recipe(name, chosen)
    if not of_recipe and norm:
        composed, norm = compose_recipe(name, {**chosen, "norm": "ln"})
    if composed.get("task", {}).get("_name") == TRANSLATION.task:
        _refuse_labels(data, name)
        model = composed.setdefault("model", {})
        if _may_share(data, model, given):
            model["share_all_embeddings"] = True
    settings = as_options(composed)
    placed = _refuse_other_placement(name, [*chain(*settings)], given)
    if not value_of(given, "--rbn-mean-weight", "--rbn-std-weight"):
        check_penalty(norm, placed, composed)
    if any(value_of(given, option) for option in PROCESSES):
        settings = [setting for setting in settings if setting[0] != PROCESSES[0]]
    settings, left_out = _fitting(data, settings, given, user_dir)
    words = [*chain(*settings), *given]
    if not value_of(words, "--save-dir"):
        seed = f"seed{value_of(words, '--seed', default='1')}"
        parts = (norm if of_recipe else "", plan, *_experiment(given), chosen["preset"], seed)
        settings.append(("--save-dir", _run_directory(data, name, parts)))
    words = [data, *chain(*settings), *given]
    directory = Path(value_of(words, "--save-dir"))
    if not value_of(given, "--save-dir") and (directory / LAST).exists():
        typer.echo(f"goes on with the training in {directory}; --save-dir begins another")
    of_group = f", norm {norm}" if norm else ""
    typer.echo(f"recipe {name}{of_group}: rbn train {shlex.join(words)}")
    if left_out:
        typer.echo(f"left out, as what is given has no such options: {', '.join(left_out)}")
    return words


def _own_plan(given: list[str]) -> str:
    """Return what the given options say of norms, as a part of a file name; empty if nothing."""
    plans = ((label, value_of(given, option)) for option, label in _PLANS.items())
    return re.sub(r"[^\w.+-]", "_", "-".join(label + plan for label, plan in plans if plan))


def _experiment(given: list[str]) -> Iterator[str]:
    """Yield what other given options add to the name of a run directory."""
    for word, following in pairwise([*given, "--"]):
        option, _, value = word.partition("=")
        if _EXPERIMENT.match(option) and option not in _PLANS:
            value = value or following * (not following.startswith("--"))
            name = _NAMES.get(option, option[2:].replace("-", "_"))
            yield re.sub(r"[^\w.+-]", "_", "_".join(filter(None, (name, value))))


def _run_directory(data: str, recipe: str, parts: Iterable[Optional[str]]) -> str:
    """Return where a training goes: by recipe, data, and the parts of its own name."""
    ends = Path(data.split(os.pathsep)[0]).resolve().parts[-2:]
    return str(Path("runs", Path(recipe).stem, "-".join(ends), "-".join(filter(None, parts))))


def _refuse_labels(data: str, recipe: str) -> None:
    """Refuse data of texts with labels or tags, where the recipe translates."""
    from rbn_fairseq.measuring.adapters import LABEL

    if Path(data.split(os.pathsep)[0], f"dict.{LABEL}.txt").is_file():
        raise ValueError(
            f"`{data}` has texts with labels or tags, and the recipe `{recipe}` translates. Name "
            "another with --recipe, such as imdb_post or conll2003_post (`rbn recipes`)."
        )


def _may_share(data: str, model: Mapping[str, Any], given: list[str]) -> bool:
    """Tell whether one table of embeddings can be both sides', and nothing is said of it."""
    from rbn_fairseq.measuring.data_bin import share_a_dictionary

    keys = [*model, *(word[2:].replace("-", "_") for word in given if word[:2] == "--")]
    if any(re.match(_OF_EMBEDDINGS, key) for key in keys):
        return False
    encoder, decoder = (
        value_of(given, f"--{side}-embed-dim", default=str(model.get(f"{side}_embed_dim")))
        for side in ("encoder", "decoder")
    )
    return encoder == decoder and share_a_dictionary(data)


def _fitting(
    data: str, settings: Settings, given: list[str], user_dir: Optional[Path]
) -> tuple[Settings, list[str]]:
    """Return the settings that what is given has options for, and the other settings' options.

    Such are those of the recipe's optimizer where another one is given. Norms of a stack that the
    model has not are those of its only one.
    """
    from rbn_fairseq.callbacks.start import LOSSES
    from rbn_fairseq.models.kinds import kind_of

    if value_of(given, "--best-checkpoint-metric") in LOSSES:  # the recipe's may be a score
        maximised = ("--maximize-best-checkpoint-metric",)
        settings = [setting for setting in settings if setting != maximised]
    words = [data, *chain(*settings), *given]
    words += plugin_options(words, user_dir)
    unknown = set(parse_training(words, parse_known=True)[1])
    lacks = unknown & _STACKS.keys() if kind_of(value_of(words, "--arch", "-a")) else set()
    if lacks:
        settings = [(_STACKS[o], *v) if o in lacks else (o, *v) for o, *v in settings]
    left_out = [option for option, *_ in settings if option in unknown]
    return [setting for setting in settings if setting[0] not in unknown], left_out


def _refuse_other_placement(recipe: str, settings: list[str], given: list[str]) -> str:
    """Refuse an architecture that would make a Pre-Norm recipe Post-Norm, or the reverse.

    Returns:
        The model's placement, `_pre` or `_post`.
    """
    from rbn_fairseq.models.kinds import SIDES, kind_of

    architecture, arch = (value_of(words, "--arch", "-a") for words in (settings, given))
    kind = kind_of(architecture)
    before = architecture.endswith("_pre")
    flags = [f"--{side}-normalize-before" for side in (kind.sides if kind else SIDES)]
    said = {*flags} & {*settings, *given}
    same = kind is None or kind is not kind_of(arch) or arch.endswith("_pre") == before
    if not said and not same:
        post = "" if before else f"--arch {arch.removesuffix('_pre')}, or for Pre-Norm also "
        raise ValueError(
            f"The recipe `{recipe}` is {'Pre' if before else 'Post'}-Norm, and --arch {arch} is "
            f"not: give {post}{' '.join(flags)}, or another recipe."
        )
    return "_pre" if flags[0] in said or (arch or architecture).endswith("_pre") else "_post"
