"""Describes runs by their configuration: placement, norm, seed, data, model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Optional

from rbn_fairseq.report.runs import Run


@dataclass(frozen=True)
class Metric:
    """What a task is measured by: a score, and the unit of its losses.

    Attributes:
        key: what score.json and the log of a validation call the score.
        name: the score's in headings.
        unit: of losses and of what TID costs.
        datasets: those that the paper reports it of, by a word in the names of their data; the
            first stands for data of other names.
        lower: whether a lower one is better.
    """

    key: str
    name: str
    unit: str
    datasets: dict[str, str]
    lower: bool = False

    def of_paper(self, data: str) -> list[str]:
        """Return the paper's data sets to show beside runs on data of this name."""
        known = [name for word, name in self.datasets.items() if word in data.lower()]
        return known or list(self.datasets.values())[:1]


_METRICS = {
    "translation": Metric(
        "bleu", "BLEU", "bits per target token", {"iwslt": "IWSLT14", "wmt": "WMT16"}
    ),
    "language_modeling": Metric(
        "ppl", "PPL", "bits per token", {"ptb": "PTB", "wikitext": "WikiText-103"}, lower=True
    ),
    "text_classification": Metric(
        "accuracy",
        "accuracy, %",
        "bits per text",
        {"imdb": "IMDB", "sogou": "Sogou", "dbpedia": "DBPedia", "yelp": "Yelp"},
    ),
    "sequence_tagging": Metric("f1", "F1", "bits per tag", {"conll": "CoNLL", "resume": "Resume"}),
}


def metric_of(task: str) -> Metric:
    """Return what a task is measured by; as translation where that is not known."""
    return next(
        (metric for name, metric in _METRICS.items() if task.startswith(name)),
        _METRICS["translation"],
    )


#: The papers' names of norms by plan; with the penalty BN is RBN.
FAMILIES = {
    "layer": "LN", "batch": "BN", "renorm": "BRN", "repbn": "RepBN", "power": "PN-only",
    "groupscale+power": "PN+LS", "mabn": "MABN", "un": "UN", "rms": "RMSNorm", "prms": "pRMSNorm",
    "scale": "ScaleNorm", "group": "GroupNorm", "instance": "InstanceNorm", "dyt": "DyT",
    "derf": "Derf", "none": "no norm",
}  # fmt: skip
_PLACEMENTS = {"deepnorm": "DeepNorm", "sub": "Sub-LN", "peri": "Peri-LN", "hybrid": "HybridNorm"}
_OPTIONS = {"norm_unit_embeddings": "FixNorm", "norm_small_init": "small init"}
#: In the order of tables.
PLACEMENTS = ("Post-Norm", "Pre-Norm", *_PLACEMENTS.values(), "")
#: Behind a norm's name where batch norms have bins of lengths.
BY_LENGTH = " by length"

_SECTIONS = (
    "model", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "task", "ema",
)  # fmt: skip
_PRECISION = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")
# Patterns of settings that shape no training: places of files, what is measured on the way, what
# only sizes of machines decide, and the languages, which all runs of a group share. Not so
# --valid-subset and --max-valid-steps: losses on other sentences are not compared.
_FREE = (
    "*._name", "*validat*", "*_valid", "*unused_valid*", "*seed*", "task.data", "task.init_from",
    "task.eval_*", "task.*tid*", "task.conditioning_*", "task.source_lang", "task.target_lang",
    "dataset.num_workers", "dataset.data_buffer_size", "dataset.gen_subset",
    "optimization.update_freq", "optimization.debug_param_names",
    "optimization.stop_time_hours", "optimizer.lr", "lr_scheduler.lr",
)  # fmt: skip
_KINDS = ("criterion._name", "optimizer._name", "lr_scheduler._name")
#: Settings in which norms differ by nature.
OF_NORM = (
    "model.norm_*", "criterion.rbn_*", "processes that share statistics",
    "steps of running statistics an update",
)  # fmt: skip
_RUNNING = {"batch", "renorm", "repbn", "power", "mabn", "un"}  # plans with running statistics
#: How long a training is to be.
LENGTH = ("optimization.max_epoch", "optimization.max_update", "patience")
_GENERIC = ("bin", "data", "data-bin", "data_bin")  # names that tell nothing of the data
_SIDES = ("encoder", "decoder")
_SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
_IN_WORDS = ("{} layers", "width {}", "feed-forward {}", "{} heads")


@dataclass(frozen=True)
class Setup:
    """What distinguishes a run from others.

    Attributes:
        placement: of :data:`PLACEMENTS`; empty where the settings are unknown.
        norm: ``LN``, ``BN``, ``RBN`` (batch norm with a penalty), the papers' names of other
            norms, ``BN@0-3`` where only some layers have it, else the encoder's plan; ``by
            length`` behind it where batch norms have bins of lengths; the model's name where it is
            not ours; the run's where settings are unknown.
        seed: of the training.
        data: name of its directory; empty where unknown.
        sentences: of the training data; ``None`` where unknown.
        sizes: of the stacks, by name; empty where unknown.
        bottom: number of bottom layers with batch norm, of the encoder or of the only stack, the
            others having layer norm.
        settings: what shapes the training, by names such as ``optimization.lr``.
        metric: what its task is measured by.
        beside: the part of ``norm`` that names what is changed beside the norm, such as FixNorm.
    """

    placement: str
    norm: str
    seed: Optional[int] = None
    data: str = ""
    sentences: Optional[int] = None
    sizes: tuple[tuple[str, Any], ...] = ()
    bottom: Optional[int] = None
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    metric: Metric = metric_of("translation")
    beside: str = ""

    @property
    def size(self) -> str:
        """The model's size in words; the encoder's where the decoder's is the same."""
        size = dict(self.sizes)
        words = []
        for text, key in zip(_IN_WORDS, _SIZES, strict=True):
            found = [size[name] for name in (f"{side}_{key}" for side in _SIDES) if name in size]
            apart = found if key == "layers" else dict.fromkeys(found)
            words.append(text.format(" + ".join(map(str, apart))))
        return ", ".join(words)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a setting's name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def short_name(name: str) -> str:
    """Return a setting's name without its section; of a component that is the section's."""
    section, _, key = name.rpartition(".")
    return section if key == "_name" else key


def as_text(value: Any) -> str:
    """Return a setting's value as text; ``None`` as none."""
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _as_chosen(name: str, value: Any) -> Any:
    """Return a setting's value in one form, where there are several of the same meaning."""
    if name == "optimizer.adam_betas":
        return str(value).replace(" ", "")
    if name == "dataset.valid_subset":  # losses are of the first
        return str(value).split(",")[0]
    return value


#: What fairseq's own tasks do, and older versions did, which do not know these options.
_DEFAULTS = {"task.length_mixing": "1"}


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shapes a training, by names such as ``optimization.lr``.

    ``micro-batches an update`` is update_freq * distributed_world_size, by epoch. Without running
    statistics it does not matter which of the two; with them each process takes update_freq steps.
    """
    groups = dict(config)
    # Without copies of other groups' options, which fairseq's own models and tasks hold.
    foreign = () if _plans(config["model"]) else ("model",)
    for name in (*foreign, "task"):
        known = (group for other, group in groups.items() if other != name)
        others = {"arch", *groups}.union(*known) - {"_name"}
        groups[name] = {key: value for key, value in groups[name].items() if key not in others}
    sections = {name: groups.get(name) or {} for name in _SECTIONS}
    sections["common"] = {name: config["common"].get(name) for name in _PRECISION}
    flat = _DEFAULTS | {
        f"{section}.{key}": value
        for section, values in sections.items()
        for key, value in values.items()
    }
    names = [name for name in flat if name in _KINDS or not matches(name, _FREE)]
    flat = {name: _as_chosen(name, flat[name]) for name in names}
    flat["first weights"] = _first_weights(config)
    patience = (config.get("checkpoint") or {}).get("patience") or 0
    flat["patience"] = patience if patience > 0 else None
    processes = config["distributed_training"]["distributed_world_size"]
    flat["micro-batches an update"] = [
        value * processes for value in config["optimization"]["update_freq"]
    ]
    flat["processes that share statistics"] = processes if flat.get("model.norm_sync") else 1
    kinds = {word for plan in _plans(config["model"]) for word in re.findall("[a-z]+", plan)}
    steps = config["optimization"]["update_freq"]
    several = kinds & _RUNNING and max(steps) > 1
    flat["steps of running statistics an update"] = steps if several else None  # None: one
    return flat


def _first_weights(config: Mapping[str, Any]) -> Optional[str]:
    """Return the checkpoint of another training that this one began from: directory and file.

    The run's own seed is taken out, as seeds that each begin from their own are one setting.
    """
    chosen = config.get("checkpoint") or {}
    weights = chosen.get("finetune_from_model") or chosen.get("continue_once")
    weights = weights or config["task"].get("init_from")
    if weights is None:
        restored = PurePath(chosen.get("restore_file") or "checkpoint_last.pt")
        own = PurePath(chosen.get("save_dir") or "")
        weights = None if restored.parent in (PurePath(), own) else restored
    seed = rf"seed[-_=]?{config['common']['seed']}\b"
    return weights and re.sub(seed, "seed", "/".join(PurePath(weights).parts[-2:]))


def _data_name(path: str) -> str:
    parts = [part for part in PurePath(path.split(":")[0]).parts if part not in ("/", "..", ".")]
    if not parts:
        return path
    generic = parts[-1] in _GENERIC and len(parts) > 1
    return "/".join(parts[-2:]) if generic else parts[-1]


def _plans(model: Mapping[str, Any]) -> list[str]:
    """Return the plans of the model's stacks, the encoder's first."""
    return [str(model[name]) for name in (f"norm_{side}" for side in _SIDES) if name in model]


def _has_bins(model: Mapping[str, Any]) -> bool:
    rules = re.split("[:+]", _plans(model)[0])
    batch = any(rule.partition("@")[0] == "batch" for rule in rules)
    return batch and int(model["norm_batch_length_bins"]) > 1


def _beside(model: Mapping[str, Any], penalty: bool = False) -> str:
    """Name what is changed beside the norms themselves: linear layers' weights, embeddings."""
    weight = str(model.get("norm_weight", "none"))
    own = ["penalty"] * penalty + [weight.upper()] * (weight != "none")
    own += [text for key, text in _OPTIONS.items() if model.get(key)]
    return f" with {' and '.join(own)}" if own else ""


def _norm_name(model: Mapping[str, Any], penalised: bool) -> str:
    plan, *behind = _plans(model)
    part = re.fullmatch(r"batch@([\d-]+):layer", plan)
    name = f"BN@{part[1]}" if part else FAMILIES.get(plan, plan)
    if name == "RepBN" and model["norm_repbn_layer_end"]:
        name = "PRepBN"
    of_batch = name.startswith("BN")
    if penalised and of_batch:
        name = f"R{name}"
    if _has_bins(model):
        name += BY_LENGTH
    others = [f", decoder {FAMILIES.get(plan, plan)}" for plan in behind if plan != "layer"]
    return "".join([name, _beside(model, penalised and not of_batch), *others])


def _bottom(model: Mapping[str, Any]) -> Optional[int]:
    """Return L of ``batch@0-(L-1):layer`` in the first stack; other plans have none."""
    plan, *behind = _plans(model)
    if {*behind} - {"layer"} or _has_bins(model) or _beside(model):
        return None
    if plan in ("layer", "batch"):
        layers = next(model[f"{side}_layers"] for side in _SIDES if f"norm_{side}" in model)
        return int(layers) if plan == "batch" else 0
    part = re.fullmatch(r"batch@0(?:-(\d+))?:layer", plan)
    return int(part[1] or 0) + 1 if part else None


def describe(run: Run) -> Setup:
    """Read a run's configuration; without one that can be read, only its name is known."""
    try:
        return _describe(run)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Setup("", run.name)


def _describe(run: Run) -> Setup:
    model, criterion = run.config["model"], run.config["criterion"]
    penalties = ("rbn_mean_weight", "rbn_std_weight", "rbn_target_tid")  # the last one is gone
    penalised = any(criterion.get(name) for name in penalties)
    names = [f"{side}_{size}" for side in _SIDES for size in _SIZES]
    task = run.config["task"]  # of several parts one was counted; of a language model blocks
    several = ":" in str(task["data"]) or "sample_break_mode" in task
    special = _PLACEMENTS.get(str(model.get("norm_placement")))
    before = [model[name] for name in (f"{side}_normalize_before" for side in _SIDES)
              if name in model]  # fmt: skip
    return Setup(
        special or ("Pre-Norm" if any(before[:1]) else "Post-Norm" if before else ""),
        _norm_name(model, penalised) if _plans(model) else str(model["_name"]),
        int(run.config["common"]["seed"]),
        _data_name(str(run.config["task"]["data"])),
        None if several else run.sentences,
        tuple((name, int(model[name])) for name in names if name in model),
        _bottom(model) if _plans(model) and not penalised else None,
        _flatten(run.config),
        metric_of(str(run.config["task"].get("_name"))),
        _beside(model) if _plans(model) else "",
    )
