"""The options of the model: fairseq's own for a Transformer, and the norms'."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, get_type_hints

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig

from rbn_fairseq.models.linear import WEIGHT_NORMS
from rbn_fairseq.norms import NORMS, on_registration

__all__ = [
    "PRESETS",
    "NormConfig",
    "RBNConfig",
    "StackPlan",
    "config_class",
    "fill_preset",
    "norm_fields",
    "resolve",
]

_BASE = {
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "encoder_normalize_before": False,
    "decoder_embed_dim": 512,
    "decoder_ffn_embed_dim": 2048,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_normalize_before": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}


def _both(**sizes: Any) -> dict[str, Any]:
    return {
        f"{side}_{name}": size for name, size in sizes.items() for side in ("encoder", "decoder")
    }


# The sizes are those of fairseq's architectures of the same name; `tiny` is for CPUs.
_POST = {
    "rbn_transformer": _BASE,
    "rbn_transformer_tiny": _BASE
    | _both(embed_dim=128, ffn_embed_dim=256, layers=2, attention_heads=4),
    "rbn_transformer_iwslt_de_en": _BASE | _both(ffn_embed_dim=1024, attention_heads=4),
    "rbn_transformer_wmt_en_de": _BASE,
    "rbn_transformer_wmt_en_de_big": _BASE
    | _both(embed_dim=1024, ffn_embed_dim=4096, attention_heads=16)
    | {"dropout": 0.3},
}
PRESETS: dict[str, dict[str, Any]] = _POST | {
    f"{name}_pre": preset | _both(normalize_before=True)
    for name, preset in _POST.items()
    if name != "rbn_transformer"
}

#: Options of fairseq for other layers, attention or weights than norms are planned for.
_UNSUPPORTED = (
    "cross_self_attention",
    "base_layers",
    "encoder_layers_to_keep",
    "decoder_layers_to_keep",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "quant_noise_pq",
    "quant_noise_scalar",
)

_Field = tuple[str, Any, Any]


def _fairseq_fields() -> Iterator[_Field]:
    """Yield fairseq's options under their flat names (``encoder_layers``).

    What a preset sets is Optional with None for "not given": only so can a named architecture,
    reached through argparse or through Hydra, respect what the user gives and fill the rest.
    """
    for item in dataclasses.fields(TransformerConfig):
        if dataclasses.is_dataclass(item.default):  # fairseq puts the nested class here
            nested = [(f"{item.name}_{sub.name}", sub) for sub in dataclasses.fields(item.default)]
        else:
            nested = [(item.name, item)]
        for name, sub in nested:
            if sub.name == "_name":
                continue
            late = name in _BASE or name in ("decoder_input_dim", "decoder_output_dim")
            kind = Optional[sub.type] if late else sub.type
            default = None if late else sub.default
            yield name, kind, field(default=default, metadata=dict(sub.metadata))


def norm_fields() -> Iterator[_Field]:
    """Yield the norms' options: name, type, field."""
    plan = (
        "norms of the {side} layers: a norm such as `layer`, `batch` or `a+b`, or a plan such as "
        "`batch@0-3:batch@4.ffn:layer`; `rbn norms` lists them"
    )
    final = "norm behind the last {side} layer (Pre-Norm only), such as `layer`, `batch` or `a+b`"
    for name, text in (("norm_{side}", plan), ("norm_{side}_final", final)):
        for side in ("encoder", "decoder"):
            help = text.format(side=side)
            yield name.format(side=side), str, field(default="layer", metadata={"help": help})
    placement = (
        "where norms stand and how residuals are added: `standard`, Post- or Pre-Norm by "
        "--encoder-normalize-before and --decoder-normalize-before; `deepnorm`, Post-Norm with "
        "residuals and first weights scaled by depth (Wang et al., 2022, DeepNet); `sub`, Pre-Norm "
        "with a second norm of the same kind inside every sublayer, before the attention's output "
        "projection and before fc2, and first weights scaled by depth (Wang et al., 2022, "
        "Foundation Transformers)"
    )
    kind = ChoiceEnum(("standard", "deepnorm", "sub"))
    yield "norm_placement", kind, field(default="standard", metadata={"help": placement})
    weight = (
        "weights of the encoder layers' linear maps: as they are, `wn` (weight normalisation) or "
        "`cwn` (centred weight normalisation)"
    )
    kind = ChoiceEnum(WEIGHT_NORMS)
    yield "norm_weight", kind, field(default="none", metadata={"help": weight})
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


def config_class() -> type[FairseqDataclass]:
    """Return fairseq's options for a Transformer and those of all norms, in one flat dataclass.

    A subclass of fairseq's own nested TransformerConfig cannot be composed by fairseq-train.
    """
    return RBNTransformerConfig


def _make_config() -> None:
    global RBNTransformerConfig  # by this name processes that are started find it
    RBNTransformerConfig = dataclasses.make_dataclass(
        "RBNTransformerConfig",
        [*_fairseq_fields(), *norm_fields()],
        bases=(FairseqDataclass,),
        namespace={"__module__": __name__},
    )


RBNTransformerConfig: type[FairseqDataclass]
_make_config()
on_registration(_make_config)


@dataclass(frozen=True)
class StackPlan:
    """Which norms go where in an encoder or a decoder.

    Attributes:
        side: ``encoder`` or ``decoder``.
        layers: plan of the layers.
        final: norms behind the last layer.
        depth: number of layers.
    """

    side: str
    layers: str
    final: str
    depth: int


@dataclass(frozen=True)
class NormConfig:
    """Which norms a model has, and where.

    Attributes:
        encoder, decoder: the norms of each.
        placement: arrangement of norms and residuals, ``standard``, ``deepnorm`` or ``sub``.
        weight: weight normalisation of the encoder layers.
        sync: whether batch statistics are those of all processes together.
        options: parameters by norm name.
    """

    encoder: StackPlan
    decoder: StackPlan
    placement: str
    weight: str
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


def resolve(cfg: Any) -> RBNConfig:
    """Complete and check a config, and give it the nested form that fairseq's modules read.

    Args:
        cfg: DictConfig or Namespace, perhaps of an older version that lacks some fields.

    Raises:
        ValueError: if a norm's parameter is outside its range, options contradict each other, or
            one of fairseq's is not supported.
    """
    full = _filled(cfg)
    _check(full)
    return _nested(full)


def _filled(cfg: Any) -> argparse.Namespace:
    """Return all options: as given, as the preset says, or by default."""
    given = dict(cfg) if isinstance(cfg, DictConfig) else dict(vars(cfg))
    full = argparse.Namespace()
    for item in dataclasses.fields(config_class()):
        value = given.get(item.name)
        setattr(full, item.name, item.default if value is None else value)
    fill_preset(full, PRESETS.get(given.get("_name") or given.get("arch") or "", _BASE))
    full.decoder_input_dim = full.decoder_input_dim or full.decoder_embed_dim
    full.decoder_output_dim = full.decoder_output_dim or full.decoder_embed_dim
    return full


def _check(full: argparse.Namespace) -> None:
    for name in _UNSUPPORTED:
        if getattr(full, name):
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with rbn_transformer, whose norms are "
                "planned for fairseq's plain layers. Leave it out."
            )
    before = (full.encoder_normalize_before, full.decoder_normalize_before)
    placement = str(full.norm_placement)
    if (placement == "deepnorm" and any(before)) or (placement == "sub" and not all(before)):
        kind, do = ("Post-Norm", "leave out") if placement == "deepnorm" else ("Pre-Norm", "give")
        raise ValueError(
            f"--norm-placement {placement} is a {kind} arrangement: {do} "
            "--encoder-normalize-before and --decoder-normalize-before, which an architecture "
            "with `_pre` sets."
        )


def _nested(full: argparse.Namespace) -> RBNConfig:
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
        side: StackPlan(
            side=side,
            layers=getattr(full, f"norm_{side}"),
            final=getattr(full, f"norm_{side}_final"),
            depth=getattr(full, f"{side}_layers"),
        )
        for side in ("encoder", "decoder")
    }
    norms = NormConfig(
        **stacks,
        placement=str(full.norm_placement),
        weight=str(full.norm_weight),
        sync=full.norm_sync,
        options=options,
    )
    for name in [name for name in vars(full) if name.startswith(("norm_", "_"))]:
        delattr(full, name)
    config: RBNConfig = RBNConfig.from_namespace(full)
    config.norms = norms
    return config
