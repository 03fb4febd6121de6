"""Models made of some of a trained model's layers (LayerDrop, Fan et al., 2019)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["keep_layers", "kept_layers"]


def kept_layers(keep: Any, depth: int, side: str) -> Sequence[int]:
    """Read ``--encoder-layers-to-keep`` or its sister of the decoder.

    Args:
        keep: numbers counted from 0, as ``"0,2"`` or in a list; ``None`` or nothing = all.
        depth: number of the trained model's layers.
        side: ``encoder`` or ``decoder``.

    Returns:
        The numbers of the layers that the model has, in ascending order.

    Raises:
        ValueError: for what is no number of a layer.
    """
    if not keep:
        return range(depth)
    words = [word.strip() for word in keep.split(",")] if isinstance(keep, str) else keep
    numbers = {str(number): number for number in range(depth)}
    wrong = [str(word) for word in words if str(word) not in numbers]
    if wrong:
        raise ValueError(
            f"--{side}-layers-to-keep takes numbers of layers from 0 to {depth - 1}, such as "
            f"`0,{depth - 1}`, but names `{wrong[0]}`."
        )
    return sorted({numbers[str(word)] for word in words})


def keep_layers(
    state: Mapping[str, Tensor], kept: Sequence[int], depth: int, side: str
) -> dict[str, Tensor]:
    """Take the kept layers of one stack out of the state of a whole model, and number them anew.

    A state that does not have ``depth`` layers is one of the smaller model already, and stays as
    it is. (fairseq's ``prune_state_dict`` drops all layers of the other stack.)

    Args:
        state: a model's state dict.
        kept: numbers of the layers that the model has.
        depth: number of layers that they were chosen from.
        side: ``encoder`` or ``decoder``.
    """
    pattern = re.compile(rf"{side}\.layers\.(\d+)\.")
    found = {name: int(match[1]) for name in state if (match := pattern.match(name))}
    if set(found.values()) != set(range(depth)):
        return dict(state)
    places = {number: place for place, number in enumerate(kept)}
    return {
        pattern.sub(f"{side}.layers.{places[found[name]]}.", name) if name in found else name: value
        for name, value in state.items()
        if name not in found or found[name] in places
    }
