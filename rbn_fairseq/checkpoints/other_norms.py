"""Weights for a model whose norms are others than those that they were trained with."""

import re
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

__all__ = ["load_weights"]

_NORM = re.compile(r"(layer_norm|layernorm_embedding|\.fc2_norm|\.ffn_out|_attn_out|_proj\.norm)\.")
_SHOWN = 5


def _plain(name: str) -> str:
    """Return fairseq's name of what sub-LN and the centred weights behind `mabn` rename."""
    name = name.replace("_attn_out.projection.", "_attn.out_proj.")
    return re.sub(r"\.parametrizations\.weight\.original$", ".weight", name)


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in sorted(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def load_weights(model: Any, weights: dict[str, Tensor], path: str) -> list[str]:
    """Load the weights of a model with the same sizes, whose norms may be others.

    Parameters of norms are taken where both models have them under one name, running statistics
    where the file has all of a norm's; the model keeps the others as they are.

    Args:
        model: fairseq's model.
        weights: state dict of the other one; brought up to date in place.
        path: the file that it is from, for messages.

    Returns:
        Names of the norms whose running statistics the file lacks.

    Raises:
        ValueError: if anything but norms differs, or the model ties weights that differ.
    """
    model.upgrade_state_dict(weights)
    state = model.state_dict()
    values = {_plain(name): value for name, value in weights.items()}
    given, expected = (
        {_plain(name): tuple(value.shape) for name, value in model.items()}
        for model in (weights, state)
    )
    differ = {name for name in given | expected if given.get(name) != expected.get(name)}
    wrong = {name for name in differ if not _NORM.search(name)}
    if wrong:
        raise ValueError(
            f"--init-from `{path}`: its model differs from this one in more than norms: "
            f"{_listed(wrong)}. Give this model its architecture (layers, sizes, shared "
            "embeddings, --norm-weight) and dictionaries, or name another file."
        )
    taken = {name: values[_plain(name)] for name in state if _plain(name) not in differ}
    statistics = [name for name in state if ".population." in name]
    lacking = {name.partition(".population.")[0] for name in statistics if name not in taken}
    taken = {
        name: value
        for name, value in taken.items()
        if name.partition(".population.")[0] not in lacking
    }
    model.load_state_dict(state | taken)
    # In place of NaN something that is equal to itself.
    tied = {
        name
        for name, value in taken.items()
        if not torch.equal(state[name].nan_to_num(), value.to(state[name].dtype).nan_to_num())
    }
    if tied:
        raise ValueError(
            f"--init-from `{path}` has weights of their own for what this model shares with "
            f"others: {_listed(tied)}. Share embeddings as the file's model does "
            "(--share-all-embeddings, --share-decoder-input-output-embed)."
        )
    return sorted(lacking)
