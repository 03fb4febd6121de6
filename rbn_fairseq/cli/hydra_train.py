"""The verb that trains by Hydra."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from unittest import mock

import typer

from rbn_fairseq.cli.fairseq_commands import (
    log_as_fairseq,
    plugin_options,
    run_fairseq,
    usage_errors,
)
from rbn_fairseq.cli.options import UserDir

# What decides where norms are, and for which stack.
_OF_NORMS = re.compile(r"norm$|model\.(_name|norm_\w+|\w+_normalize_before)$")


def check_norms(recipe: Path, words: Sequence[str]) -> None:
    """Check the norms of what a command line of Hydra's trains, one job or several.

    What Hydra refuses is left to it, and so is what files of its sweeper sweep.

    Args:
        recipe: its path, absolute.
        words: its overrides; of those that sweep, norms and placements are tried out.

    Raises:
        ValueError: for a penalty of the other placement, unless its weights are others than the
            norm's; or for a norm of a stack that the model has not.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    choices = []
    with suppress(HydraException):
        for override in OverridesParser.create().parse_overrides(list(words)):
            if override.is_sweep_override():
                key, values = override.get_key_element(), [*override.sweep_string_iterator()]
                if not _OF_NORMS.match(override.key_or_group):
                    del values[1:]
                choices.append([f"{key}={value}" for value in values])
            else:
                choices.append([str(override.input_line)])
        for job in product(*choices):
            with suppress(HydraException):
                _check_job(recipe, job)


def _check_job(recipe: Path, words: Sequence[str]) -> None:
    from rbn_fairseq.models.kinds import SIDES, kind_of
    from rbn_fairseq.recipes import check_penalty, compose_settings, names, placement, read_norm

    settings, norm = compose_settings(recipe, words)
    if not any(word.startswith("sweep=") for word in words):  # which may sweep the weights
        check_penalty(norm, placement(settings), settings, "norm=")
    kind = kind_of((settings.get("model") or {}).get("_name"))
    if kind is None or norm not in names("norm"):
        return
    model = read_norm(norm).get("model") or {}
    for side in SIDES:
        if side not in kind.sides and f"norm_{side}" in model:
            own, plan = kind.sides[0], model[f"norm_{side}"]
            raise ValueError(
                f"norm={norm} has norms of the {side}, and the model's only stack is the {own}: "
                f"give norm=ln{'_lm' * (own == 'decoder')} model.norm_{own}={plan}, and the norm's "
                "other options."
            )


def hydra_train(context: typer.Context, user_dir: UserDir = None) -> None:
    """Train by Hydra: fairseq-hydra-train with the plugin and its recipes put in.

    `rbn hydra-train --config-name iwslt14_post task.data=DATA-BIN norm=rbn`; `-m norm=ln,bn,rbn`
    trains several. Without --config-dir, a name is one of `rbn recipes`, or a file.
    """
    from fairseq.dataclass.initialize import hydra_init
    from hydra._internal.utils import get_args_parser

    from rbn_fairseq.recipes import choose, directory, find, root, setting

    log_as_fairseq()
    with usage_errors():
        given, _ = get_args_parser().parse_known_intermixed_args(context.args)
    settings, name, where = list(given.overrides), given.config_name, given.config_dir
    options = [word for word in context.args if word not in settings]
    if not name:
        raise ValueError("--config-name is missing; `rbn recipes` lists what it may name.")
    recipe = Path(where or "", f"{name.removesuffix('.yaml')}.yaml")
    if not where:
        recipe = find(name, option="--config-name")
        if recipe.stem == "config":  # which Hydra would take from fairseq
            raise ValueError("--config-name: `config` is fairseq's own. Rename the recipe.")
        for place, word in enumerate(settings):  # as for `rbn train --norm`, of a sweep each
            with suppress(ValueError):  # a file of the user's
                if norms := re.fullmatch(r"norm=([\w,]+)", word):
                    chosen = [choose(recipe, "norm", norm) for norm in norms[1].split(",")]
                    settings[place] = ",".join(chosen).replace(",norm=", ",")
        # Behind the given --config-name, which may be a path.
        options += ["--config-dir", str(recipe.parent), "--config-name", recipe.stem]
    elif not recipe.is_file():
        # fairseq would take any name, and train by its own defaults.
        raise ValueError(f"--config-name: there is no {name}.yaml in `{where}`.")
    else:
        find(str(recipe), option="--config-name")
    check_norms(recipe.absolute(), settings)
    if not any(word.startswith("common.user_dir=") for word in settings):
        settings.insert(0, setting("common.user_dir", plugin_options([], user_dir)[1]))
    if recipe.parent != directory():
        settings.insert(0, setting("hydra.searchpath", f"file://{directory()}", several=True))
    with (
        mock.patch.dict(os.environ, HYDRA_FULL_ERROR="1"),  # errors come here, not to stderr
        # fairseq's own defaults, which would overwrite all that the recipe derives from.
        mock.patch("fairseq_cli.hydra_train.hydra_init", lambda _: hydra_init(root(recipe))),
    ):
        run_fairseq("hydra_train", [*settings, *options])  # Hydra wants settings in one row
