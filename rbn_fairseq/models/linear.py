"""Linear layers around norms: those that read a norm's output, and parametrised weights."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from rbn_fairseq.models.placements import HeadNorm, SubNorm
from rbn_fairseq.norms import Composition, MovingAverageBatchNorm

__all__ = [
    "WEIGHT_NORMS", "centre_weights", "normalise_weights", "readers_of_norms", "readers_of_stack",
]  # fmt: skip


def _readers_in_layer(layer: Any) -> Iterator[tuple[nn.Module, list[nn.Linear]]]:
    """Yield the norms of a layer, and the linear layers by which a sublayer reads each.

    In Post-Norm it is the sublayer of the norm that is yielded, not the one that comes next.
    """
    attention = layer.self_attn
    yield layer.self_attn_layer_norm, [attention.q_proj, attention.k_proj, attention.v_proj]
    if getattr(layer, "encoder_attn", None) is not None:
        yield layer.encoder_attn_layer_norm, [layer.encoder_attn.q_proj]
    yield layer.final_layer_norm, [layer.fc1]
    inner = [part for part in layer.children() if isinstance(part, SubNorm)]
    yield from ((part.norm, [part.projection]) for part in inner)
    if inner:
        yield layer.fc2_norm, [layer.fc2]


def readers_of_stack(model: Any, side: str) -> list[nn.Linear]:
    """Return the linear layers that read the output of a model's encoder or decoder.

    The encoder's are in the decoder. The decoder's is the output projection, which is not one of
    them: it may be the embedding.
    """
    if side == "decoder" or "decoder" not in model.kind.sides:
        return []
    layers = model.decoder.layers.children()  # all: iterating itself, LayerDrop's list chooses
    attentions = [layer.encoder_attn for layer in layers if layer.encoder_attn is not None]
    return [linear for each in attentions for linear in (each.k_proj, each.v_proj)]


def readers_of_norms(
    stack: Any, behind: list[nn.Linear]
) -> Iterator[tuple[nn.Module, list[nn.Linear]]]:
    """Yield every norm of a stack, and the linear layers that read its output.

    ``behind`` are the linear layers that read the stack's own output.
    """
    layers = list(stack.layers.children())  # not LayerDrop's choice
    norms, linear = zip(
        *(reads for layer in layers for reads in _readers_in_layer(layer)), strict=True
    )
    post = not layers[0].normalize_before
    if stack.layernorm_embedding is not None:
        yield stack.layernorm_embedding, linear[0] if post else []
    if post:  # it is the next sublayer that reads a norm's output
        linear = (*linear[1:], behind)
    yield from zip(norms, linear, strict=True)
    for layer in layers:
        heads = [part.norm for part in layer.modules() if isinstance(part, HeadNorm)]
        outputs = [part for name, part in layer.named_children() if name.endswith("_out")]
        yield from ((norm, []) for norm in (*heads, *outputs))
    if stack.layer_norm is not None:
        yield stack.layer_norm, behind


WEIGHT_NORMS = ("none", "wn", "cwn")


class _CentredWeightNorm(nn.Module):
    """``w = g (v - mean v) / ||v - mean v||`` for each row v of the weight: one output."""

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        centred = v - v.mean(1, keepdim=True)
        return g * F.normalize(centred)  # 0 where all of a row are equal

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        centred = weight - weight.mean(1, keepdim=True)
        return torch.linalg.vector_norm(centred, dim=1, keepdim=True), weight


def normalise_weights(module: nn.Module, kind: str) -> None:
    """Parametrise the weight of every linear layer in ``module``, row by row, in place.

    ``wn``: ``w = g v / ||v||`` (Salimans and Kingma, 2016, Weight Normalization, Eq. 2), which
    leaves the first weights as they are. ``cwn``: the same with the mean of v taken off (Huang et
    al., 2017, Centered Weight Normalization), which centres them. ``none``: nothing.
    """
    for part in list(module.modules()):
        if isinstance(part, nn.Linear) and kind == "wn":
            parametrizations.weight_norm(part)
        elif isinstance(part, nn.Linear) and kind == "cwn":
            parametrize.register_parametrization(part, "weight", _CentredWeightNorm())


class _Centred(nn.Module):
    """``w - mean w`` for each row of the weight, one output: a common offset of the inputs is 0."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight - weight.mean(1, keepdim=True)


def centre_weights(model: Any) -> None:
    """Centre, in place, the weights of the linear layers behind every ``mabn``.

    Moving average batch norm subtracts no mean; instead each row of the weights behind it has
    its mean subtracted (Yan et al., 2020, arXiv:2001.06838), by torch's parametrisation. In that
    paper's stacks of convolutions the layer behind one norm is the layer before the next; in a
    Transformer, where residuals come in between, it is the layer behind that is centred: the
    projections to queries, keys and values, or fc1.

    Raises:
        ValueError: where what follows is not a linear layer.
    """
    for side in model.kind.sides:
        stack = getattr(model, side)
        for norm, linear in readers_of_norms(stack, readers_of_stack(model, side)):
            parts = list(norm) if isinstance(norm, Composition) else [norm]
            moving = [isinstance(p, MovingAverageBatchNorm) and p.centres_weights for p in parts]
            if any(moving[:-1]) or (moving[-1] and not linear):
                last = len(stack.layers) - 1
                raise ValueError(
                    f"--norm-{side} or --norm-{side}-final: `mabn` needs a linear layer behind it, "
                    "whose weights it centres. In a composition put it last (`groupscale+mabn`); "
                    f"where nothing reads the {side}, end it with another norm "
                    f"(`layer@{last}.ffn:mabn`; behind the last layer `layer`). Use another norm "
                    "at `qk` and `qkv`, with --norm-placement peri or hybrid, and in Pre-Norm at "
                    "`embedding`."
                )
            for each in linear if moving[-1] else []:
                parametrize.register_parametrization(each, "weight", _Centred())
