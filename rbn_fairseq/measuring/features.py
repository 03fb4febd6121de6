"""Input features of a stack's layers, recorded during a forward."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

__all__ = ["record_features"]


@contextmanager
def record_features(
    stack: Sequence[Any], layers: Sequence[int]
) -> Iterator[dict[tuple[int, str], Tensor]]:
    """Record input features of layers in the block's first forward through each.

    Places: ``stream``, what enters the layer; and in Pre-Norm ``normalised``, what its first norm
    passes to self-attention. Nothing stays on the modules afterwards.

    Args:
        stack: layers of an ``rbn_transformer``'s encoder.
        layers: which of them, counted from 1. Those that LayerDrop skips are not among the results.

    Yields:
        Copies by layer and place, ``(real tokens, C)``, in the dtype of the forward and without
        its graph; filled while the block runs.
    """
    features: dict[tuple[int, str], Tensor] = {}

    def keep(layer: int, place: str, x: Tensor) -> None:  # x: (N, C)
        if (layer, place) not in features:
            features[layer, place] = x.detach().clone()

    def enter(layer: int, module: nn.Module, args: Any) -> None:
        keep(layer, "stream", args[0])

    def leave_norm(layer: int, module: nn.Module, args: Any, output: Tensor) -> None:
        keep(layer, "normalised", output)

    with ExitStack() as hooks:
        for number in layers:
            layer = stack[number - 1]
            hook = layer.register_forward_pre_hook(partial(enter, number))
            hooks.callback(hook.remove)
            if layer.normalize_before:
                norm = layer.self_attn_layer_norm
                hooks.callback(norm.register_forward_hook(partial(leave_norm, number)).remove)
        yield features
