"""State dicts of models with other layers, norms or dictionaries."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rbn_fairseq.norms import statistics_by_norm

__all__ = [
    "check_dictionaries",
    "drop_length_bins",
    "explain_other_norms",
    "keep_layers",
    "kept_layers",
    "refuse_lost_length_bins",
]

logger = logging.getLogger(__name__)


def check_dictionaries(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Refuse weights that belong to dictionaries of other sizes.

    Args:
        state: the model's state dict.
        loaded: the state dict to load.

    Raises:
        ValueError: naming both sizes.
    """
    for side, name in (
        ("source", "encoder.embed_tokens.weight"),
        ("target", "decoder.embed_tokens.weight"),
    ):
        if name in loaded and len(loaded[name]) != len(state[name]):
            raise ValueError(
                f"The checkpoint was trained with a {side} dictionary of {len(loaded[name])} "
                f"types, but the data's has {len(state[name])}. Give the data directory that the "
                "checkpoint was trained on."
            )


def drop_length_bins(
    state: Mapping[str, Tensor], loaded: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Leave out running statistics by sentence length of norms that have none in this model.

    Those of all lengths, which the norms keep besides, are what the same training without bins
    would have.

    Args:
        state: the model's state dict.
        loaded: the state dict to load.

    Returns:
        What is left of ``loaded``.
    """
    extra, expected = set(), statistics_by_norm(state)
    for norm, buffers in statistics_by_norm(loaded).items():
        if "edges" in buffers and "running_mean" in expected.get(norm, {}):
            extra.update(
                f"{norm}.population.{name}" for name in buffers.keys() - expected[norm].keys()
            )
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
    statistics = statistics_by_norm(loaded).values()
    edges = next((buffers["edges"] for buffers in statistics if "edges" in buffers), None)
    if edges is not None and getattr(model_cfg, "norm_batch_length_bins", 1) == 1:
        raise ValueError(
            f"{path} was trained with --norm-batch-length-bins {len(edges) - 1}, which would be "
            "lost. Give it again, or start a new training from its weights: --init-from FILE."
        )


def explain_other_norms(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str | None:
    """Say what is wrong where weights come from a model with other running statistics.

    Args:
        state: the model's state dict.
        loaded: the state dict that could not be loaded.

    Returns:
        The message; ``None`` where both have the same statistics.
    """
    expected, given = statistics_by_norm(state), statistics_by_norm(loaded)
    for norm, buffers in given.items():
        edges = buffers.get("edges")
        expected_edges = expected.get(norm, {}).get("edges", edges)
        if edges is not None and edges.shape != expected_edges.shape:
            return (
                f"The checkpoint has running statistics for {len(edges) - 1} bins of sentence "
                f"lengths, but --norm-batch-length-bins says {len(expected_edges) - 1}. Give its "
                "number, or let `rbn recalibrate --length-bins` estimate them for another."
            )
    missing, unexpected = (
        [
            f"{norm}.population.{name}"
            for norm, buffers in one.items()
            for name in buffers
            if name not in other.get(norm, {})
        ]
        for one, other in ((expected, given), (given, expected))
    )
    if not missing and not unexpected:
        return None
    word, name = ("lacks", missing[0]) if missing else ("has", unexpected[0])
    return (
        f"The checkpoint was trained with other norms than this model's: it {word} population "
        f"statistics, such as `{name}`. Give the norms that it was trained with (--norm-encoder, "
        "--norm-decoder, --norm-batch-length-bins; `layer` for fairseq's own `transformer`), or "
        "start a new training from its weights: --init-from FILE with --task translation_rbn takes "
        "them and estimates the statistics that they lack."
    )


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
    numbers = {name: int(match[1]) for name in state if (match := pattern.match(name))}
    if set(numbers.values()) != set(range(depth)):
        return dict(state)
    places = {number: place for place, number in enumerate(kept)}
    return {
        pattern.sub(f"{side}.layers.{places[numbers[name]]}.", name)
        if name in numbers
        else name: value
        for name, value in state.items()
        if name not in numbers or numbers[name] in places
    }
