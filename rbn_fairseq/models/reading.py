"""Which linear layers read the output of each norm."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from rbn_fairseq.models.subnorm import SubNorm

__all__ = ["readers_in_layer", "readers_of_encoder"]


def readers_in_layer(layer: Any) -> Iterator[tuple[nn.Module, list[nn.Linear]]]:
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


def readers_of_encoder(decoder: Any) -> list[nn.Linear]:
    """Return the linear layers by which a decoder reads the encoder's output."""
    layers = [decoder.layers[index] for index in range(len(decoder.layers))]  # all, with LayerDrop
    attentions = [layer.encoder_attn for layer in layers if layer.encoder_attn is not None]
    return [linear for each in attentions for linear in (each.k_proj, each.v_proj)]
