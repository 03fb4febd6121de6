"""fairseq's options composed by Hydra once for each choice of groups, not for every command.

`convert_namespace_to_omegaconf` has Hydra compose some 40 groups of options and set 390 values: a
third of the time of a tiny training. The groups of most commands are the same, and only values
differ.
"""

import contextlib
import copy
import functools
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from unittest import mock

from fairseq import options
from fairseq.dataclass import utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from rbn_fairseq.norms import NORMS


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Within it fairseq's commands compose their options from what was composed before."""
    with mock.patch.object(utils, "compose", _remembering(utils.compose)):
        yield


def options_of(
    argv: list[str], make_parser: Callable[..., ArgumentParser] = options.get_training_parser
) -> DictConfig:
    """Return the options that ``fairseq-train ARGV``, or another command, takes."""
    with mock.patch.object(sys, "argv", ["fairseq", *argv]):  # parsers look for --user-dir there
        parsed = options.parse_args_and_arch(make_parser(), argv)
    return utils.convert_namespace_to_omegaconf(parsed)


def _remembering(compose: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    parse = functools.cache(OverridesParser.create().parse_override)

    @functools.cache
    def of_groups(config_name: str, norms: tuple[str, ...], *groups: str) -> DictConfig:
        return compose(config_name, overrides=list(groups), strict=True)

    def composed(config_name: str, overrides: list[str], strict: bool) -> DictConfig:
        groups = [override for override in overrides if "." not in override.split("=")[0]]
        values = [override for override in overrides if override not in groups]
        config = copy.deepcopy(of_groups(config_name, tuple(NORMS), *groups))
        ConfigLoaderImpl._apply_overrides_to_config(list(map(parse, values)), config)
        OmegaConf.set_struct(config, strict)
        return config

    return composed
