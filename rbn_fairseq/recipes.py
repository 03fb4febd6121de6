"""Recipes: all settings of a training, in ``configs/`` or in a file of the user's.

A recipe is a Hydra config: its defaults are ``base.yaml`` and one file of each group, such as
``norm``.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

__all__ = [
    "GROUPS", "as_options", "check_penalty", "choose", "compose_recipe", "compose_settings",
    "directory", "find", "names", "placement", "read_norm", "summary",
]  # fmt: skip

#: The groups whose file can be chosen for a single training.
GROUPS = ("norm", "preset")

# Options that choose a component of fairseq's and are not called as their section.
_COMPONENTS = {"model": "--arch", "lr_scheduler": "--lr-scheduler"}
_LEFT_TO_RBN = re.compile(r"(user_dir|data)=|log_format=simple$")  # a terminal shows a bar
_SWITCHES_OFF = ("left_pad_source",)  # of fairseq's: true unless the option is given


def directory() -> Path:
    """Return the directory of the recipes: in the installed package, or beside it in a clone."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def setting(name: str, value: str, several: bool = False) -> str:
    """Return ``name=value`` for Hydra, to which some characters of a path have a meaning."""
    quoted = "'" + value.replace("'", "\\'") + "'"
    return f"{name}=[{quoted}]" if several else f"{name}={quoted}"


def names(group: str = "") -> list[str]:
    """Return the names of all recipes, or of the files of a group."""
    files = sorted(path.stem for path in (directory() / group).glob("*.yaml"))
    return [name for name in files if name != "base"]


def summary(path: Path) -> str:
    """Return the first sentence of the comment at a file's head."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("# ")
        if not line.startswith("#") or (lines and text in ("#", "")):
            break
        if not text.startswith("@"):
            lines.append(text)
    return re.split(r"\.(?= [A-Z]|$)", " ".join(lines))[0]


def find(name: str, group: str = "", option: str = "--recipe") -> Path:
    """Return the path of a recipe or a group's file by its name, or of a file of the user's.

    Raises:
        ValueError: if there is none; the message lists the known names. Or if what the user's
            recipe takes in behind itself, such as ``base``, would overwrite its settings.
    """
    path = Path(name)
    if path.suffix == ".yaml" and path.is_file():
        if not group:
            _refuse_lost(path)
        return path.absolute()
    if path.suffix == ".yml" and path.is_file():
        raise ValueError(f"{option}: Hydra reads `.yaml` alone. Rename `{name}`.")
    known = names(group)
    if name not in known:
        both = [re.sub("_(post|pre)$", "", it) for it in known] if group else []  # see choose
        near = get_close_matches(name, [*known, *both], n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise ValueError(f"{option}: there is no `{name}`.{hint} There are {', '.join(known)}.")
    return directory() / group / f"{name}.yaml"


def root(path: Path) -> str:
    """Return the name of the recipe that a file derives from, as by `defaults: [NAME, _self_]`.

    That of the first one, if that derives from another; its own, if from none.
    """
    match _read(path):
        case {"defaults": [str(first), *_]}:
            for parent in (path.parent / f"{first}.yaml", directory() / f"{first}.yaml"):
                if parent != path and parent.is_file():
                    return root(parent)
    return path.stem


def _read(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a recipe's sections by ``section.key``, Hydra's deeper."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif prefix:
            flat[prefix + name] = value
    return flat


def _refuse_lost(path: Path) -> None:
    """Refuse settings of a recipe to which what comes behind it gives other values."""
    try:
        own = _flat(dict(_read(path)))
        composed = _flat(_compose(path.absolute(), []))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError):
        return  # is told where it is composed for good
    own.pop("hydra.searchpath", None)  # is overwritten by _compose
    lost = [name for name, value in own.items() if str(composed.get(name, value)) != str(value)]
    if lost:
        raise ValueError(
            f"`{path}`: its {', '.join(lost)} would be lost, since what stands behind `_self_` in "
            "its `defaults` gives them other values. Give such settings on the command line "
            "instead."
        )


def choose(recipe: Path, group: str, name: str) -> str:
    """Return the override of a group.

    A name such as `rbn_official` is a file for each placement, `rbn` one for translation and one
    for language models: those whose own file is called so, too. A file of the user's lies beside
    the recipe, in a directory called as the group.

    Raises:
        ValueError: naming the option, if the group has no such file, or the recipe no such group.
    """
    settings = _compose(recipe, [])
    choices = settings["hydra"]["runtime"]["choices"]
    if group not in choices:
        raise ValueError(
            f"--{group} {name}: the recipe `{recipe.stem}` has no `{group}` among its defaults, as "
            "those for translation have (`rbn recipes`)."
        )
    ends = [placement(settings)]
    if (choices.get("norm") or "").endswith("_lm"):
        ends.insert(0, "_lm")
    for end in ends:
        if name + end in names(group):
            return f"{group}={name}{end}"
    path = find(name, group, f"--{group}")
    if path.parent not in (directory() / group, recipe.parent / group):
        raise ValueError(
            f"--{group}: Hydra finds `{name}` in a directory `{group}` beside a recipe of yours "
            f"(--recipe FILE), not here. Put it there, as `{group}/{path.name}`."
        )
    return f"{group}={path.stem}"


def placement(settings: Mapping[str, Any]) -> str:
    """Return `_pre` or `_post`, by what a recipe's settings say of the model."""
    model = settings.get("model") or {}
    before = [model.get(f"{side}_normalize_before") for side in ("encoder", "decoder")]
    said = [value for value in before if value is not None]
    is_pre = any(said) if said else str(model.get("_name")).endswith("_pre")
    return "_pre" if is_pre else "_post"


def check_penalty(
    norm: str, placed: str, settings: Mapping[str, Any], option: str = "--norm "
) -> None:
    """Refuse a norm whose weights of the penalty are for the other placement.

    Args:
        norm: a file of the group, such as `rbn_official_post`.
        placed: the model's placement, `_pre` or `_post`.
        settings: those of the recipe with it, which may give other weights.
        option: what chooses a norm.

    Raises:
        ValueError: naming the same norm for this placement.
    """
    other = {"_pre": "_post", "_post": "_pre"}[placed]
    fitting = norm.removesuffix(other) + placed
    if not norm.endswith(other) or fitting not in names("norm"):
        return
    given, own = settings.get("criterion") or {}, read_norm(norm)["criterion"]
    weights = ("rbn_mean_weight", "rbn_std_weight")
    if all(given.get(weight) == own.get(weight) for weight in weights):
        theirs, ours = (f"{it[1:].title()}-Norm" for it in (other, placed))
        raise ValueError(
            f"The penalty of the norm `{norm}` is for {theirs}, and the model is {ours}: add "
            f"{option}{fitting}, or another norm."
        )


def read_norm(name: str) -> dict[str, Any]:
    """Return the settings that a norm's file has, by section."""
    return dict(_read(find(name, "norm")))


def compose_settings(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Compose a recipe by Hydra, with overrides in its words.

    Returns:
        The settings by section, not resolved, and the name of the norm's file; empty = none.
    """
    settings = _compose(path, overrides)
    return settings, settings.pop("hydra")["runtime"]["choices"].get("norm") or ""


def _compose(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a recipe, with Hydra's own settings."""
    overrides = list(overrides)
    if path.parent != directory():
        overrides.append(setting("hydra.searchpath", f"file://{directory()}", several=True))
    GlobalHydra.instance().clear()
    stored = ConfigStore.instance().repo
    # The version is set for the whole process, and that of fairseq, which comes next, is 1.1.
    # fairseq, where it has composed the recipe before, has stored its own defaults by that name.
    with (
        mock.patch.dict(stored),
        warnings.catch_warnings(action="ignore"),
        initialize_config_dir(str(path.parent), version_base="1.1"),
    ):
        stored.pop(f"{path.stem}.yaml", None)
        composed = compose(path.stem, overrides, return_hydra_config=True)
    return OmegaConf.to_container(composed, resolve=False, enum_to_str=True)


def compose_recipe(
    name: str, chosen: Mapping[str, Optional[str]]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Compose a recipe with other files of its groups.

    Args:
        name: of a recipe, or a file.
        chosen: the files of :data:`GROUPS`; ``None`` = those that the recipe names.

    Returns:
        The settings by section, and the name of the norm's file. What is ``???`` or Hydra's, such
        as where a run goes, or what `rbn train` itself sees to, is left out.

    Raises:
        ValueError: if there is no such recipe or file of a group, or a recipe's settings are not
            in sections as fairseq's configuration has them.
    """
    path = find(name)
    overrides = [choose(path, group, file) for group, file in chosen.items() if file is not None]
    settings, norm = compose_settings(path, overrides)
    for section, values in settings.items():
        if not isinstance(values, dict):
            raise ValueError(
                f"`{path}`: `{section}: {values}` is in no section. Put it where fairseq's "
                "configuration has it, such as `optimization:` for `lr`."
            )
    for_hydra = r"\$\{hydra|^\?\?\?$"
    if "${" in str(settings.get("checkpoint", {}).get("save_dir")):  # and all that refers to it
        del settings["checkpoint"]["save_dir"]
        for_hydra += r"|\$\{checkpoint\.save_dir\}"
    for values in settings.values():
        for key, value in list(values.items()):
            if _LEFT_TO_RBN.match(f"{key}={value}") or re.search(for_hydra, str(value)):
                del values[key]
    resolved: Any = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    return resolved, norm


def as_options(settings: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a recipe's settings as options of fairseq-train, each with its value if it has one.

    What is null or false is left out.
    """
    options: list[tuple[str, ...]] = []
    for section, values in settings.items():
        for key, value in values.items():
            if key == "_name":
                options.append((_COMPONENTS.get(section, f"--{section}"), str(value)))
            else:
                options += _option(key, value)
    return list(dict.fromkeys(options))


def _option(key: str, value: Any) -> list[tuple[str, ...]]:
    option = "--" + key.replace("_", "-")
    if key in _SWITCHES_OFF and value is not None:
        value = not value
    if value is None or value is False:
        return []
    if value is True:
        return [(option,)]
    return [(option, ",".join(map(str, value)) if isinstance(value, list) else str(value))]
