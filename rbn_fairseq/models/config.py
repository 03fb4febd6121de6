"""The options of the models: fairseq's own for a Transformer, and the norms'."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, get_type_hints

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig

from rbn_fairseq.models.kinds import KINDS, SIDES, TRANSLATION, ModelKind, kind_of
from rbn_fairseq.models.linear import WEIGHT_NORMS
from rbn_fairseq.norms import NORMS, on_registration

__all__ = [
    "NormConfig", "RBNConfig", "StackPlan", "complete", "completed", "config_class",
    "fill_preset", "norm_fields", "resolve",
]  # fmt: skip

#: Placements beside `standard`, and the layers that each arranges.
_PLACEMENTS = {"deepnorm": "Post-Norm", "sub": "Pre-Norm", "peri": "Pre-Norm", "hybrid": "Pre-Norm"}

_Field = tuple[str, Any, Any]


def _fairseq_fields(kind: ModelKind) -> Iterator[_Field]:
    """Yield the options that a kind takes over of fairseq, under flat names (``encoder_layers``).

    What a preset sets is Optional with None for "not given": only so can a named architecture,
    reached through argparse or through Hydra, respect what the user gives and fill the rest.
    """
    filled = {"decoder_input_dim", "decoder_output_dim", *kind.presets[kind.name]}
    absent = tuple(f"{side}_" for side in SIDES if side not in kind.sides)
    for item in dataclasses.fields(kind.base):
        if dataclasses.is_dataclass(item.default):  # fairseq puts the nested class here
            nested = [(f"{item.name}_{sub.name}", sub) for sub in dataclasses.fields(item.default)]
        else:
            nested = [(item.name, item)]
        for name, sub in nested:
            if sub.name == "_name" or name in kind.left_out or name.startswith(absent):
                continue
            late = name in filled
            type_ = Optional[sub.type] if late else sub.type
            default = None if late else sub.default
            yield name, type_, field(default=default, metadata=dict(sub.metadata))


def norm_fields(sides: Sequence[str] = SIDES) -> Iterator[_Field]:
    """Yield the options of the norms of a model with these stacks: name, type, field."""
    plan = (
        "norms of the {side} layers: a norm such as `layer`, `batch` or `a+b`, or a plan such as "
        "`batch@0-3:batch@4.ffn:layer`; `rbn norms` lists them. Sites are `self`, `cross`, `ffn`, "
        "and, where a rule names them, `qk` and `qkv` (heads of queries and keys, and of values), "
        "`embedding`"
    )
    final = "norm behind the last {side} layer (Pre-Norm only), such as `layer`, `batch` or `a+b`"
    for name, text in (("norm_{side}", plan), ("norm_{side}_final", final)):
        for side in sides:
            help = text.format(side=side)
            yield name.format(side=side), str, field(default="layer", metadata={"help": help})
    placement = (
        "where norms stand and how residuals are added: `standard`, Post- or Pre-Norm by "
        f"{_before(sides)}; `deepnorm`, Post-Norm with "
        "residuals and first weights scaled by depth (Wang et al., 2022, DeepNet); `sub`, Pre-Norm "
        "with a second norm of the same kind inside every sublayer, before the attention's output "
        "projection and before fc2, and first weights scaled by depth (Wang et al., 2022, "
        "Foundation Transformers); `peri`, Pre-Norm with a second norm of the same kind behind "
        "every sublayer, and one of the embedding (Kim et al., 2025, Peri-LN); `hybrid`, norms of "
        "queries, keys and values and of the feed-forward network's input, which is its residual, "
        "too (Zhuo et al., 2025, HybridNorm)"
    )
    kind = ChoiceEnum(("standard", *_PLACEMENTS))
    yield "norm_placement", kind, field(default="standard", metadata={"help": placement})
    if "encoder" in sides:
        weight = (
            "weights of the encoder layers' linear maps: as they are, `wn` (weight normalisation) "
            "or `cwn` (centred weight normalisation)"
        )
        kind = ChoiceEnum(WEIGHT_NORMS)
        yield "norm_weight", kind, field(default="none", metadata={"help": weight})
    unit = (
        "embeddings divided by their lengths, at the input"
        + (" and in the output projection" if "decoder" in sides else "")
        + " (FixNorm: Nguyen and Salazar, 2019, Transformers without Tears)"
    )
    yield "norm_unit_embeddings", bool, field(default=False, metadata={"help": unit})
    small = (
        "first weights of variance 2 / (5 C) in attentions, smaller than fairseq's, and "
        "Xavier-normal ones in feed-forward networks, which are larger (Nguyen and Salazar, 2019); "
        "not with --norm-placement deepnorm or sub, which have their own"
    )
    yield "norm_small_init", bool, field(default=False, metadata={"help": small})
    sync = "batch statistics of all processes together instead of each process's own"
    yield "norm_sync", bool, field(default=False, metadata={"help": sync})
    for name, norm in NORMS.items():
        kinds = get_type_hints(norm.options_type)
        for option in dataclasses.fields(norm.options_type):
            choices = option.metadata.get("choices")
            kind = ChoiceEnum(choices) if choices else kinds[option.name]
            metadata = {"help": f"{name}: {option.metadata['help']}"}
            item = field(default=option.default, metadata=metadata)
            yield f"norm_{name}_{option.name}", kind, item


def _before(sides: Sequence[str]) -> str:
    return " and ".join(f"--{side}-normalize-before" for side in sides)


_classes: dict[str, type[FairseqDataclass]] = {}  # by kind


def config_class(kind: ModelKind = TRANSLATION) -> type[FairseqDataclass]:
    """Return fairseq's options for a kind of model and those of all norms, in one flat dataclass.

    A subclass of fairseq's own nested TransformerConfig cannot be composed by fairseq-train.
    """
    return _classes[kind.name]


def _make_configs() -> None:
    for name, kind in KINDS.items():
        words = name.removeprefix("rbn_").split("_")
        made = dataclasses.make_dataclass(
            f"RBN{''.join(map(str.title, words))}Config",
            [*_fairseq_fields(kind), *norm_fields(kind.sides)],
            bases=(FairseqDataclass,),
            namespace={"__module__": __name__},
        )
        _classes[name] = made
        globals()[made.__name__] = made  # by this name processes that are started find it


_make_configs()
on_registration(_make_configs)


@dataclass(frozen=True)
class StackPlan:
    """Which norms go where in an encoder or a decoder.

    Attributes:
        layers: plan of the layers.
        final: norms behind the last layer.
    """

    layers: str
    final: str


@dataclass(frozen=True)
class NormConfig:
    """Which norms a model has, and where.

    Attributes:
        stacks: the norms of each stack that there is, by side.
        placement: arrangement of norms and residuals, as ``--norm-placement``.
        weight: weight normalisation of the encoder layers.
        unit_embeddings: whether embeddings have unit length.
        small_init: whether first weights are as in Transformers without Tears.
        sync: whether batch statistics are those of all processes together.
        options: parameters by norm name.
    """

    stacks: Mapping[str, StackPlan]
    placement: str
    weight: str
    unit_embeddings: bool
    small_init: bool
    sync: bool
    options: Mapping[str, Any]


class RBNConfig(TransformerConfig):
    """fairseq's sizes of a Transformer, and its norms."""

    norms: NormConfig


def fill_preset(cfg: Any, preset: Mapping[str, Any]) -> None:
    """Fill the options that the user has not given from a preset, in place."""
    for name, value in preset.items():
        if getattr(cfg, name, None) is None:
            setattr(cfg, name, value)


def complete(kind: ModelKind, given: Mapping[str, Any]) -> argparse.Namespace:
    """Return all options of a model: as given, as its architecture says, or by default.

    Args:
        kind: of the model.
        given: options, perhaps of an older version that lacks some; others are left out.
    """
    full = argparse.Namespace()
    for item in dataclasses.fields(config_class(kind)):
        value, default = given.get(item.name), item.default
        if str(default).startswith("${"):  # another option's value, which `given` has
            default = None
        setattr(full, item.name, default if value is None else value)
    architecture = given.get("_name") or given.get("arch") or kind.name
    fill_preset(full, kind.presets.get(architecture, kind.presets[kind.name]))
    return full


def completed(model: Any) -> dict[str, Any]:
    """Return a model's settings with what its architecture or the defaults set.

    Args:
        model: DictConfig, Namespace or mapping; that of another model than ours stays as it is.
    """
    given = dict(model if isinstance(model, (DictConfig, Mapping)) else vars(model))
    name = str(given.get("_name") or given.get("arch"))
    kind = kind_of(name)
    if kind is None:  # an architecture of the user's own, or another model
        sides = tuple(side for side in SIDES if f"norm_{side}" in given)
        kind = next((it for it in KINDS.values() if it.sides == sides), None)
    return given if kind is None else {**vars(complete(kind, given)), "_name": name}


def resolve(cfg: Any, kind: ModelKind = TRANSLATION) -> RBNConfig:
    """Complete and check a config, and give it the nested form that fairseq's modules read.

    Args:
        cfg: DictConfig or Namespace, perhaps of an older version that lacks some fields.
        kind: of the model.

    Raises:
        ValueError: if a norm's parameter is outside its range, options contradict each other, or
            one of fairseq's is not supported.
    """
    full = complete(kind, dict(cfg) if isinstance(cfg, DictConfig) else dict(vars(cfg)))
    if "decoder" in kind.sides:
        full.decoder_input_dim = full.decoder_input_dim or full.decoder_embed_dim
        full.decoder_output_dim = full.decoder_output_dim or full.decoder_embed_dim
    full.checkpoint_activations |= full.offload_activations  # of what is computed again
    _check(kind, full)
    return _nested(kind, full)


def _check(kind: ModelKind, full: argparse.Namespace) -> None:
    for side in kind.sides:
        if getattr(full, f"{side}_layers") < 1:
            raise ValueError(f"--{side}-layers must be at least 1.")
    for name in ("share_all_embeddings", "share_decoder_input_output_embed"):
        if getattr(full, name, False) and getattr(full, "adaptive_softmax_cutoff", None):
            raise ValueError(  # fairseq would look for the embedding in what it loads
                f"--{name.replace('_', '-')} does not go with --adaptive-softmax-cutoff, whose "
                "checkpoints could not be loaded. Leave it out."
            )
    placement = str(full.norm_placement)
    if full.norm_small_init and placement in ("deepnorm", "sub"):
        raise ValueError(
            f"--norm-small-init does not go with --norm-placement {placement}, which has first "
            "weights of its own. Leave one of them out."
        )
    name = _PLACEMENTS.get(placement)
    before = {bool(getattr(full, f"{side}_normalize_before")) for side in kind.sides}
    if name and before != {name == "Pre-Norm"}:
        do = "give" if name == "Pre-Norm" else "leave out"
        raise ValueError(
            f"--norm-placement {placement} is an arrangement of {name} layers: {do} "
            f"{_before(kind.sides)}, which an architecture or recipe with `_pre` sets."
        )


def _nested(kind: ModelKind, full: argparse.Namespace) -> RBNConfig:
    """Split options into fairseq's and the norms'."""
    options = {
        name: norm.options_type(
            **{
                option.name: getattr(full, f"norm_{name}_{option.name}")
                for option in dataclasses.fields(norm.options_type)
            }
        )
        for name, norm in NORMS.items()
    }
    stacks = {
        side: StackPlan(getattr(full, f"norm_{side}"), getattr(full, f"norm_{side}_final"))
        for side in kind.sides
    }
    norms = NormConfig(
        stacks=stacks,
        placement=str(full.norm_placement),
        weight=str(getattr(full, "norm_weight", "none")),
        unit_embeddings=full.norm_unit_embeddings,
        small_init=full.norm_small_init,
        sync=full.norm_sync,
        options=options,
    )
    for name in [name for name in vars(full) if name.startswith(("norm_", "_"))]:
        delattr(full, name)
    config: RBNConfig = RBNConfig.from_namespace(full)
    config.norms = norms
    return config
