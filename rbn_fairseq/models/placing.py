"""Placement of norms in the stacks of a model, and of length bins in its encoder."""

import copy
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, Optional

from rbn_fairseq.models.config import NormConfig, RBNConfig
from rbn_fairseq.models.kinds import SIDES
from rbn_fairseq.models.placements import (
    HEADS,
    OUTPUTS,
    PROJECTIONS,
    HeadNorm,
    deepnorm,
    draw_small_weights,
    draw_weights,
    place_sub_norm,
    sub_norm_gains,
)
from rbn_fairseq.norms import (
    EMBEDDING,
    NORMS,
    BatchNorm,
    LengthBins,
    NormPlace,
    NormPlan,
    PopulationByLength,
    build_norm,
    parse_norms,
)

__all__ = ["binned", "encoder_batch_norms", "place_norms", "set_length_bins"]

logger = logging.getLogger(__name__)

_PLACES = {  # site of a plan -> the layer's attribute, which keeps fairseq's name
    "self": "self_attn_layer_norm",
    "cross": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}
_GENERAL = {  # placement -> where rules without a site put norms; elsewhere those that name it do
    "standard": (*_PLACES,),
    "deepnorm": (*_PLACES,),
    "sub": (*_PLACES,),
    "peri": (*_PLACES, EMBEDDING),
    "hybrid": ("qkv", "ffn"),
}


_DECODER, _HEADS = "in the decoder", "at `qk` or `qkv`"


def _refuse_at(where: str, names: Collection[str], norms: NormConfig, option: str) -> None:
    """Refuse norms that ask which sentence a row is of, where they may not know it."""
    for name in names:
        leaks, bins = NORMS[name].leaks, getattr(norms.options.get(name), "length_bins", 1) > 1
        if leaks or bins:
            reason = leaks or "while a text is made, its length is not known yet"
            if where == _HEADS:
                reason = "it asks which sentence a row is of, and there a row is a token's head"
            without = f", or leave --norm-{name}-length-bins out" if bins else ""
            raise ValueError(
                f"{option}: `{name}` may not stand {where}: {reason}. Use another norm there, such "
                f"as `layer`{without}."
            )


def place_norms(stack: Any, cfg: RBNConfig, side: str) -> None:
    """Arrange the planned norms in an encoder or decoder built by fairseq.

    Residuals and first weights get the sizes that the arrangement says.
    """
    norms, option, causal = cfg.norms, f"--norm-{side}", side == "decoder"
    planned = norms.stacks[side]
    layers = list(stack.layers.children())  # LayerDrop's list, iterated over, drops some at random
    has = {site: getattr(layers[0], name, None) is not None for site, name in _PLACES.items()}
    places = {site: name for site, name in _PLACES.items() if has[site]}
    sites = (*places, *HEADS, EMBEDDING)
    named = tuple(site for site in sites if site not in _GENERAL[norms.placement])
    plan = NormPlan.parse(planned.layers, option, named).check(len(layers), sites, NORMS)
    final = parse_norms(planned.final, NORMS, f"{option}-final")
    if causal:
        _refuse_at(_DECODER, [name for rule in plan.rules for name in rule.norms], norms, option)
    place = NormPlace(layers[0].embed_dim, layers[0].self_attn.num_heads, norms.sync)
    hidden = replace(place, channels=layers[0].fc1.out_features)
    _place_embedding_norm(stack, plan, place, norms)
    depths = [getattr(cfg, each).layers if each in norms.stacks else 0 for each in SIDES]
    for number, layer in enumerate(layers):
        for site, name in places.items():
            names = plan.norms(number, site) or ("none",)
            setattr(layer, name, build_norm(names, place, norms.options))
            if norms.placement == "sub":
                inner = hidden if site == "ffn" else place
                place_sub_norm(layer, site, build_norm(names, inner, norms.options))
            elif norms.placement == "peri":
                setattr(layer, OUTPUTS[site], build_norm(names, place, norms.options))
        _place_head_norms(layer, number, plan, norms)
        if norms.placement == "deepnorm":
            layer.residual_scale, gain = deepnorm(*depths)[causal]
            draw_weights(layer, gain)
        elif norms.placement == "sub":
            draw_weights(layer, sub_norm_gains(*depths)[causal])
        elif norms.small_init:
            draw_small_weights(layer)
        if norms.placement == "hybrid":
            attentions = [plan.norms(number, site) for site in places if site != "ffn"]
            layer.adds_normalised = all(names in ((), ("none",)) for names in attentions)
    if stack.layer_norm is None:
        if planned.final != "layer":
            logger.warning(
                "%s-final %s is not used: only Pre-Norm has a norm behind the last layer, and not "
                "with --no-decoder-final-norm",
                option,
                planned.final,
            )
        return
    if causal:
        _refuse_at(_DECODER, final, norms, f"{option}-final")
    stack.layer_norm = build_norm(final, place, norms.options)


def _place_head_norms(layer: Any, number: int, plan: NormPlan, norms: NormConfig) -> None:
    attentions = (layer.self_attn, getattr(layer, "encoder_attn", None))
    for attention, (name, sites) in product(filter(None, attentions), PROJECTIONS.items()):
        names = plan.norms(number, *sites)
        _refuse_at(_HEADS, names, norms, plan.option)
        if names:
            place, heads = NormPlace(attention.head_dim, sync=norms.sync), attention.num_heads
            norm = build_norm(names, place, norms.options)
            setattr(attention, name, HeadNorm(getattr(attention, name), norm, heads))


def _place_embedding_norm(stack: Any, plan: NormPlan, place: NormPlace, norms: NormConfig) -> None:
    names = plan.norms(None, EMBEDDING)
    if stack.layernorm_embedding is not None:
        if names:
            raise ValueError(
                f"{plan.option}: the plan `{plan}` has a norm of the embedding, and "
                "--layernorm-embedding is another one. Leave --layernorm-embedding out."
            )
        names = ("layer",)  # in place of fairseq's, which takes no layout
    if names:
        stack.layernorm_embedding = build_norm(names, place, norms.options)


def _rebuilt(norm: BatchNorm, bins: Optional[LengthBins]) -> BatchNorm:
    """Return a norm with the parameters and the global running statistics of another."""
    number = 1 if bins is None else len(bins.centres)
    options = replace(norm.options, length_bins=number)
    ordinary = BatchNorm(norm.weight.numel(), options, norm.sync).to(norm.weight.device)
    if isinstance(ordinary.population, PopulationByLength):
        ordinary.population.set_bins(bins)
    ordinary.population.set(*norm.population.get())
    new = copy.copy(norm)
    new._modules = {**norm._modules, "population": ordinary.population}
    new.options, new.by_length = options, ordinary.by_length
    return new


def can_have_bins(part: Any) -> bool:
    """Return whether a module is a batch norm whose statistics may be by length."""
    return isinstance(part, BatchNorm) and hasattr(part.options, "length_bins")


def encoder_batch_norms(model: Any) -> dict[str, BatchNorm]:
    """Return the batch norms of an ``rbn_transformer``'s encoder which can have bins.

    That is ``batch`` and norms of one's own; not those of heads, and those that renormalise.
    """
    return {
        name: part
        for name, part in model.named_modules()
        if name.startswith("encoder.") and "_proj.norm" not in name and can_have_bins(part)
    }


def set_length_bins(model: Any, bins: Optional[LengthBins]) -> dict[str, BatchNorm]:
    """Give the encoder's batch norms these bins, empty, in place; ``None`` takes theirs away.

    Returns:
        The norms that stood there, by name.
    """
    before = encoder_batch_norms(model)
    for name, norm in before.items():
        model.set_submodule(name, _rebuilt(norm, bins))
    return before


@contextmanager
def binned(model: Any, bins: Optional[LengthBins]) -> Iterator[None]:
    """Give the encoder's batch norms these bins while the block runs."""
    before = set_length_bins(model, bins)
    try:
        yield
    finally:
        for name, norm in before.items():
            model.set_submodule(name, norm)
