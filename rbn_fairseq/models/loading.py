"""Weights that do not fit a model: what can be left out, and what is wrong, in the user's words."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = [
    "check_dictionaries", "drop_length_bins", "explain_other_norms", "refuse_lost_length_bins",
]  # fmt: skip

logger = logging.getLogger(__name__)
_OF_BINS = ("edges", "centres", "bin_weight", "bin_mean", "bin_var")


def check_dictionaries(own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Refuse weights that belong to dictionaries of other sizes.

    Args:
        own: the model's state dict.
        loaded: the state dict to load.

    Raises:
        ValueError: naming both sizes.
    """
    for side, name in (
        ("source", "encoder.embed_tokens.weight"),
        ("target", "decoder.embed_tokens.weight"),
    ):
        if name in loaded and len(loaded[name]) != len(own[name]):
            raise ValueError(
                f"The checkpoint was trained with a {side} dictionary of {len(loaded[name])} "
                f"types, but the data's has {len(own[name])}. Give the data directory that the "
                "checkpoint was trained on."
            )


def drop_length_bins(own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out running statistics by sentence length of norms that have none in this model.

    Those of all lengths, which the norms keep besides, are what the same training without bins
    would have.

    Args:
        own: the model's state dict.
        loaded: the state dict to load.

    Returns:
        What is left of ``loaded``.
    """
    extra = set()
    for name in loaded.keys() - own.keys():
        norm, _, kind = name.rpartition(".")
        if kind in _OF_BINS and f"{norm}.running_mean" in own:
            extra.add(name)
    if extra:
        logger.info(
            "length bins: this model has none; it takes the checkpoint's statistics of all lengths"
        )
    return {name: value for name, value in loaded.items() if name not in extra}


def refuse_lost_length_bins(path: Path, loaded: Mapping[str, Tensor], model_cfg: Any) -> None:
    """Refuse to go on training without the bins of a checkpoint.

    Raises:
        ValueError: if it has running statistics by sentence length, and the model is to have none.
    """
    found = (edges for name, edges in loaded.items() if name.endswith(".population.edges"))
    edges = next(found, None)
    if edges is not None and getattr(model_cfg, "norm_batch_length_bins", 1) == 1:
        raise ValueError(
            f"{path} was trained with --norm-batch-length-bins {len(edges) - 1}, which would be "
            "lost. Give it again, or start a new training from its weights: --init-from FILE."
        )


def explain_other_norms(own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str | None:
    """Say what is wrong where weights come from a model with other running statistics.

    Args:
        own: the model's state dict.
        loaded: the state dict that could not be loaded.

    Returns:
        The message; ``None`` where both have the same statistics.
    """
    for name, edges in loaded.items():
        if name.endswith(".population.edges") and edges.shape != own.get(name, edges).shape:
            return (
                f"The checkpoint has running statistics for {len(edges) - 1} bins of sentence "
                f"lengths, but --norm-batch-length-bins says {len(own[name]) - 1}. Give its "
                "number, or let `rbn recalibrate --length-bins` estimate them for another."
            )
    lacking, more = (
        [name for name in one if ".population." in name and name not in other]
        for one, other in ((own, loaded), (loaded, own))
    )
    if not lacking and not more:
        return None
    word, name = ("lacks", lacking[0]) if lacking else ("has", more[0])
    return (
        f"The checkpoint was trained with other norms than this model's: it {word} population "
        f"statistics, such as `{name}`. Give the norms that it was trained with (--norm-encoder, "
        "--norm-decoder, --norm-batch-length-bins; `layer` for fairseq's own `transformer`), or "
        "start a new training from its weights: --init-from FILE with --task translation_rbn takes "
        "them and estimates the statistics that they lack."
    )
