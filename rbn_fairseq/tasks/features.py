"""Input features of a model's encoder layers, as a forward comes by."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

__all__ = ["record_features"]


@contextmanager
def record_features(model: Any, layers: Sequence[int]) -> Iterator[dict[tuple[int, str], Tensor]]:
    """Catch input features of encoder layers in the block's first forward through each.

    Places: ``stream``, what enters the layer; and in Pre-Norm ``normalised``, what its first norm
    passes to self-attention. Nothing stays on the modules afterwards.

    Args:
        model: an ``rbn_transformer``.
        layers: which, counted from 1. Those that LayerDrop skips are not among the results.

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
            layer = model.encoder.layers[number - 1]
            hook = layer.register_forward_pre_hook(partial(enter, number))
            hooks.callback(hook.remove)
            if layer.normalize_before:
                norm = layer.self_attn_layer_norm
                hooks.callback(norm.register_forward_hook(partial(leave_norm, number)).remove)
        yield features
