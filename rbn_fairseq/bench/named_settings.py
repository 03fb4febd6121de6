"""What a benchmark of trainings compares: options of fairseq-train, by name."""

import shlex
from collections.abc import Sequence

from rbn_fairseq.bench.training import read_config
from rbn_fairseq.models.config import PRESETS

__all__ = ["DEFAULTS", "SETTINGS", "add_mixing", "fairseq_options", "read_settings"]

DEFAULTS = (
    "--arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam "
    "--lr 0.0005 --max-tokens 4096 --criterion label_smoothed_cross_entropy_rbn "
    "--label-smoothing 0.1"
)

_FAIRSEQ = "fairseq"  # whose options depend on those of all settings
_NORMS = {
    "layer": "",
    "batch": "--norm-encoder batch",
    "rbn": "--norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.01",
}
SETTINGS = (_FAIRSEQ, *_NORMS)


def fairseq_options(common: Sequence[str]) -> list[str]:
    """Return what makes of common options fairseq's own training of a model of the same sizes.

    Task, model and criterion are fairseq's; nothing of them is this package's.

    Args:
        common: options of fairseq-train that name a model of this package.

    Raises:
        ValueError: if fairseq-train does not take the options, or they are not all fairseq's.
    """
    cfg = read_config("", common, "cpu")
    options = ["--task", "translation", "--arch", "transformer"]
    if cfg.criterion._name == "label_smoothed_cross_entropy_rbn":
        options += ["--criterion", "label_smoothed_cross_entropy"]
    for name in PRESETS["rbn_transformer"]:
        option, value = f"--{name.replace('_', '-')}", getattr(cfg.model, name)
        if isinstance(value, bool):
            options += [option] * value
        else:
            options += [option, str(value)]
    try:
        read_config("", [*common, *options], "cpu")
    except ValueError as error:
        raise ValueError(
            f"`{_FAIRSEQ}`: {error}. fairseq's own training takes fairseq's options alone. Give "
            "those of this package in --setting rather than for all, or name the settings without "
            f"it: {' '.join(f'--setting {name}' for name in _NORMS)}."
        ) from error
    return options


def _read_setting(text: str, common: Sequence[str]) -> tuple[str, list[str]]:
    if text == _FAIRSEQ:
        return text, fairseq_options(common)
    if text in _NORMS:
        return text, shlex.split(_NORMS[text])
    name, colon, arguments = text.partition(":")
    try:
        options = shlex.split(arguments)
    except ValueError:  # a quotation that does not end
        colon = ""
    if not (colon and name.strip()):
        raise ValueError(
            "--setting must be `NAME: OPTIONS`, such as `bn: --norm-encoder batch`, or one of "
            f"{', '.join(SETTINGS)}, but is `{text}`."
        )
    return name.strip(), options


def read_settings(given: Sequence[str], common: Sequence[str]) -> dict[str, list[str]]:
    """Read settings: ``NAME: OPTIONS`` of fairseq-train, or the name of one of ``SETTINGS``.

    Args:
        given: the settings.
        common: options of all of them.

    Raises:
        ValueError: if one has no name or that of another, or a quotation does not end.
    """
    settings = dict(_read_setting(text, common) for text in given)
    if len(settings) < len(given):
        raise ValueError("--setting: two settings have the same name.")
    return settings


def add_mixing(settings: dict[str, list[str]], mixing: str) -> dict[str, list[str]]:
    """Return settings and, behind them, the last one with other values of ``--length-mixing``.

    Args:
        settings: options by name.
        mixing: the values, joined by commas.
    """
    *_, (name, options) = settings.items()
    return settings | {
        f"{name}, mixing {value}": [*options, "--length-mixing", value]
        for value in mixing.split(",")
    }
