"""Norms, residuals and wrappers of a stack of layers, as the configuration plans them."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from torch import nn

from rbn_fairseq.models.config import NormConfig
from rbn_fairseq.models.deepnorm import deepnorm
from rbn_fairseq.models.first_weights import draw_weights
from rbn_fairseq.models.subnorm import place_sub_norm, sub_norm_gains
from rbn_fairseq.norms import NORMS, NormPlace, NormPlan, build_norm, parse_norms

__all__ = ["place_norms", "scale_by_depth", "wrap"]

logger = logging.getLogger(__name__)

_PLACES = {  # site of a plan -> the layer's attribute, which keeps fairseq's name
    "self": "self_attn_layer_norm",
    "cross": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}


def _refuse_leaks(names: Collection[str], option: str) -> None:
    for name in names:
        if NORMS[name].leaks:
            raise ValueError(
                f"{option}: `{name}` may not stand in the decoder: {NORMS[name].leaks}. Use it in "
                "the encoder (--norm-encoder) and another norm here, such as `layer`."
            )


def _refuse_lengths(names: Collection[str], options: Mapping[str, Any], option: str) -> None:
    for name in names:
        if getattr(options.get(name), "length_bins", 1) > 1:
            raise ValueError(
                f"{option}: with --norm-{name}-length-bins `{name}` may not stand in the decoder: "
                "while a translation is made, its length is not known yet. Use another norm here, "
                f"such as `layer`, or leave --norm-{name}-length-bins out."
            )


def place_norms(stack: Any, norms: NormConfig, side: int) -> None:
    """Put the planned norms into an encoder or decoder built by fairseq; side 1 is the decoder."""
    option = ("--norm-encoder", "--norm-decoder")[side]
    plan = (norms.encoder, norms.decoder)[side]
    final = (norms.encoder_final, norms.decoder_final)[side]
    causal = side == 1
    # Not by iterating: LayerDrop's list drops layers at random when iterated over.
    layers = [stack.layers[index] for index in range(len(stack.layers))]
    sites = [site for site, name in _PLACES.items() if getattr(layers[0], name, None) is not None]
    read = NormPlan.parse(plan, option).check(norms.depths[side], sites, NORMS)
    names = parse_norms(final, NORMS, f"{option}-final")
    place = NormPlace(layers[0].embed_dim, layers[0].self_attn.num_heads, norms.sync)
    hidden = replace(place, channels=layers[0].fc1.out_features)
    for number, layer in zip(norms.kept[side], layers, strict=True):
        for site in sites:
            if causal:
                _refuse_leaks(read.norms(number, site), option)
                _refuse_lengths(read.norms(number, site), norms.options, option)
            norm = build_norm(read.norms(number, site), place, norms.options)
            setattr(layer, _PLACES[site], norm)
            if norms.placement == "sub":
                inner = hidden if site == "ffn" else place
                norm = build_norm(read.norms(number, site), inner, norms.options)
                place_sub_norm(layer, site, norm)
    if stack.layer_norm is None:
        if final != "layer":
            logger.warning(
                "%s-final %s is not used: only Pre-Norm has a norm behind the last layer",
                *(option, final),
            )
        return
    if causal:
        _refuse_leaks(names, f"{option}-final")
        _refuse_lengths(names, norms.options, f"{option}-final")
    stack.layer_norm = build_norm(names, place, norms.options)


def scale_by_depth(layers: Any, cfg: TransformerConfig, side: int) -> None:
    """Give residuals and first weights the sizes of the arrangement; side 1 is the decoder."""
    norms = cfg.norms
    for index in range(len(layers)):  # LayerDrop again
        if norms.placement == "deepnorm":
            layers[index].use_deepnorm(deepnorm(*norms.depths)[side])
        elif norms.placement == "sub":
            draw_weights(layers[index], sub_norm_gains(*norms.depths)[side])


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Wrap a layer for sharded training, where fairseq does."""
    # Follows TransformerEncoderBase.build_encoder_layer and its sister in the decoder; of
    # --checkpoint-activations the layer takes care itself.
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)
