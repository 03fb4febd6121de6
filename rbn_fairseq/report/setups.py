"""What a run is: placement, norm, seed, data and model, read from its configuration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any, Optional

from rbn_fairseq.measuring.batches import parse_mixing
from rbn_fairseq.models.config import config_class
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.settings import flatten

__all__ = ["BY_LENGTH", "FAMILIES", "PLACEMENTS", "Setup", "describe"]

#: In the order of tables.
PLACEMENTS = ("Post-Norm", "Pre-Norm", "DeepNorm", "Sub-LN", "")

#: The paper's names of norms, by plan.
FAMILIES = {
    "layer": "LN",
    "batch": "BN",
    "renorm": "BRN",
    "power": "PN-only",
    "groupscale+power": "PN+LS",
    "mabn": "MABN",
}
#: Behind a norm's name where batch norms have bins of lengths.
BY_LENGTH = " by length"
#: What a penalty puts before a norm's name, and how it is called behind others'.
_PREFIXES = {"R": "penalty", "auto-R": "target TID"}
_GENERIC = ("bin", "data", "data-bin", "data_bin")  # names that tell nothing of the data
_SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")


@dataclass(frozen=True)
class Setup:
    """What distinguishes a run from others.

    Attributes:
        placement: of :data:`PLACEMENTS`; empty where the settings are unknown.
        norm: ``LN``, ``BN``, ``RBN`` (batch norm with a penalty), ``auto-RBN`` (with a target
            TID), the paper's names of other norms, ``BN@0-3`` where only some layers have it,
            else the encoder's plan; ``by length`` behind it where batch norms have bins of
            lengths; the run's name where the settings are unknown.
        seed: of the training.
        data: name of its directory; empty where unknown.
        path: that directory, as the run was given it.
        languages: source and target with the sizes of their dictionaries, as far as known.
        sizes: of encoder and decoder, by name; empty where unknown.
        mean_weight, std_weight: the penalty's lambda and nu.
        convention: the penalty's.
        bottom: number of bottom encoder layers with batch norm, the others having layer norm.
        depth: number of encoder layers.
        length_mixing: number of length buckets that a training batch is drawn from; ``None``
            where batches are of random sentences.
        settings: everything that shapes the training, by names such as ``optimization.lr``.
    """

    placement: str
    norm: str
    seed: Optional[int] = None
    data: str = ""
    path: str = ""
    languages: tuple[tuple[str, Optional[int]], ...] = ()
    sizes: tuple[tuple[str, Any], ...] = ()
    mean_weight: float = 0.0
    std_weight: float = 0.0
    convention: str = "paper"
    bottom: Optional[int] = None
    depth: int = 0
    length_mixing: Optional[int] = 1
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def size(self) -> str:
        """The model's size in words; the encoder's where the decoder's is the same."""
        if not self.sizes:
            return "model unknown"
        size = dict(self.sizes)
        names = ("width", "feed-forward", "heads")
        words = [f"{size['encoder_layers']} + {size['decoder_layers']} layers"]
        for name, key in zip(names, _SIZES[1:], strict=True):
            both = (size[f"encoder_{key}"], size[f"decoder_{key}"])
            words.append(f"{name} {' + '.join(map(str, dict.fromkeys(both)))}")
        return ", ".join(words)


def _data_name(path: str) -> str:
    parts = [part for part in PurePath(path.split(":")[0]).parts if part not in ("/", "..", ".")]
    if not parts:
        return path
    generic = parts[-1] in _GENERIC and len(parts) > 1
    return "/".join(parts[-2:]) if generic else parts[-1]


def _languages(task: Mapping[str, Any]) -> tuple[tuple[str, None], ...]:
    pair = (task.get("source_lang"), task.get("target_lang"))
    return tuple((str(name), None) for name in pair) if all(pair) else ()


def _placement(flat: Mapping[str, Any]) -> str:
    special = {"deepnorm": "DeepNorm", "sub": "Sub-LN"}.get(str(flat["model.norm_placement"]))
    return special or ("Pre-Norm" if flat["model.encoder_normalize_before"] else "Post-Norm")


def _by_length(flat: Mapping[str, Any]) -> bool:
    rules = re.split("[:+]", str(flat["model.norm_encoder"]))
    batch = any(rule.partition("@")[0] == "batch" for rule in rules)
    return batch and int(flat["model.norm_batch_length_bins"]) > 1


def _norm(flat: Mapping[str, Any], prefix: str) -> str:
    plan, decoder = str(flat["model.norm_encoder"]), str(flat["model.norm_decoder"])
    part = re.fullmatch(r"batch@([\d-]+):layer", plan)
    name = f"BN@{part[1]}" if part else FAMILIES.get(plan, plan)
    if prefix:
        name = f"{prefix}{name}" if name.startswith("BN") else f"{name} with {_PREFIXES[prefix]}"
    if _by_length(flat):
        name += BY_LENGTH
    if str(flat["model.norm_weight"]) != "none":
        name += f", {str(flat['model.norm_weight']).upper()}"
    return name if decoder == "layer" else f"{name}, decoder {FAMILIES.get(decoder, decoder)}"


def _bottom(flat: Mapping[str, Any], depth: int) -> Optional[int]:
    """Read L of ``batch@0-(L-1):layer``; other plans have none."""
    plan = str(flat["model.norm_encoder"])
    others = (flat["model.norm_decoder"], flat["model.norm_weight"])
    if tuple(map(str, others)) != ("layer", "none") or _by_length(flat):
        return None
    if plan in ("layer", "batch"):
        return depth if plan == "batch" else 0
    found = re.fullmatch(r"batch@0(?:-(\d+))?:layer", plan)
    return int(found[1] or 0) + 1 if found else None


def _with_plain_model(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Keep of the model's settings its own: older configurations have all options there."""
    model = cfg["model"]
    own = {item.name: model.get(item.name) for item in fields(config_class())}
    return {**cfg, "model": own | {"_name": model.get("_name") or model.get("arch")}}


def describe(run: Run) -> Setup:
    """Read a run's configuration; without one that can be read, only its name is known."""
    try:
        return _describe(run)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Setup("", run.name)


def _describe(run: Run) -> Setup:
    flat = flatten(_with_plain_model(run.settings))
    seed, path = run.settings["common"]["seed"], str(run.settings["task"]["data"])
    weights = tuple(float(flat.get(f"criterion.rbn_{it}_weight") or 0) for it in ("mean", "std"))
    held = flat.get("criterion.rbn_target_tid") is not None
    prefix = "auto-R" if held else "R" if any(weights) else ""
    depth = int(flat["model.encoder_layers"])
    names = [f"{side}_{size}" for side in ("encoder", "decoder") for size in _SIZES]
    sizes = [flat[f"model.{name}"] for name in names]
    if not all(type(number) is int for number in (seed, *sizes)):
        raise TypeError("seed and sizes must be integers")
    return Setup(
        _placement(flat),
        _norm(flat, prefix),
        seed,
        _data_name(path),
        path,
        run.dictionaries or _languages(run.settings["task"]),
        tuple(zip(names, sizes, strict=True)),
        *weights,
        str(flat.get("criterion.rbn_convention", "paper")),
        None if prefix else _bottom(flat, depth),
        depth,
        parse_mixing(flat["task.length_mixing"]),
        flat,
    )
