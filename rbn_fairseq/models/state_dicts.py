"""State dicts of models with other norms or dictionaries."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rbn_fairseq.models.config import completed
from rbn_fairseq.models.kinds import SIDES
from rbn_fairseq.norms import NORMS, split_statistics

__all__ = [
    "ARRANGEMENT", "describe_plans", "difference", "drop_length_bins", "explain",
    "refuse_lost_length_bins", "refuse_other_norms",
]  # fmt: skip

logger = logging.getLogger(__name__)

#: Options of a model that say which norms go where.
ARRANGEMENT = (
    *(f"norm_{side}{final}" for side in SIDES for final in ("", "_final")),
    *(f"{side}_normalize_before" for side in SIDES),
    "norm_placement",
    "norm_unit_embeddings",
)


def drop_length_bins(
    state: Mapping[str, Tensor], loaded: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return ``loaded`` without statistics by sentence length of norms that have none in ``state``.

    Those of all lengths, which the norms keep besides, are what the same training without bins
    would have.
    """

    def of_bins(name: str) -> bool:
        norm = name.rpartition(".")[0]
        return f"{norm}.edges" in loaded and f"{norm}.running_mean" in state and name not in state

    extra = {name for name in split_statistics(loaded)[1] if of_bins(name)}
    if extra:
        logger.info(
            "length bins: this model has none; it takes the checkpoint's statistics of all lengths"
        )
    return {name: value for name, value in loaded.items() if name not in extra}


def describe_plans(settings: Mapping[str, Any]) -> str:
    """Say which norms the settings of a model plan, as options."""
    plans = {f"--norm-{side}": settings.get(f"norm_{side}") for side in SIDES}
    return ", ".join(f"{option} {plan}" for option, plan in plans.items() if plan is not None)


def difference(trained: Mapping[str, Any], model_cfg: Any, names: Collection[str]) -> str | None:
    """Say how a checkpoint's model differs from another one in its settings.

    Args:
        trained: the settings of the checkpoint's model; fairseq's own name no norms.
        model_cfg: those of the other model.
        names: of the settings to compare, where both have them or their architecture sets them.

    Returns:
        The first one that differs, as in ``--norm-encoder batch, not layer``; ``None`` = none does.
    """
    theirs, ours = completed(trained), completed(model_cfg)
    for name in names:
        before, now = theirs.get(name), ours.get(name)
        if before is not None and now is not None and str(before) != str(now):
            return f"--{name.replace('_', '-')} {before}, not {now}"
    return None


def refuse_other_norms(path: Path, trained: Mapping[str, Any], model_cfg: Any) -> None:
    """Refuse to go on training a checkpoint with other norms, whose names and shapes may fit.

    Raises:
        ValueError: if both say which norms go where, and it is not the same.
    """
    other = difference(trained, model_cfg, ARRANGEMENT)
    if other:
        raise ValueError(
            f"{path} was trained with other norms than this model's: {other}. Give those, or "
            "start a new training from its weights: --init-from FILE."
        )


def refuse_lost_length_bins(path: Path, loaded: Mapping[str, Tensor], model_cfg: Any) -> None:
    """Refuse to go on training without the bins of a checkpoint.

    Raises:
        ValueError: if it has running statistics by sentence length, and the model is to have none.
    """
    edges = next((loaded[name] for name in loaded if name.endswith("population.edges")), None)
    bins = [getattr(model_cfg, f"norm_{name}_length_bins", None) or 1 for name in NORMS]
    if edges is not None and max(bins) == 1:
        raise ValueError(
            f"{path} was trained with --norm-batch-length-bins {len(edges) - 1}, which would be "
            "lost. Give it again, or start a new training from its weights: --init-from FILE."
        )


def explain(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor], task: str) -> str | None:
    """Say why ``loaded`` could not be loaded: other dictionaries, or other running statistics.

    ``None`` where both are those of ``state``, the model's; ``task`` is the one for the model.
    """
    for side, name in (
        ("source", "encoder.embed_tokens.weight"),
        ("target", "decoder.embed_tokens.weight"),
    ):
        if name in loaded and name in state and len(loaded[name]) != len(state[name]):
            return (
                f"The checkpoint was trained with a {side} dictionary of {len(loaded[name])} "
                f"types, but the data's has {len(state[name])}. Give the data directory that the "
                "checkpoint was trained on."
            )
    expected, given = (  # by name, and the number of bins
        {(name, len(value) if name.endswith(".edges") else 0) for name, value in part.items()}
        for part in (split_statistics(state)[1], split_statistics(loaded)[1])
    )
    other = sorted(expected ^ given)
    if not other:
        return None
    return (
        "The checkpoint was trained with other norms than this model's: their population "
        f"statistics differ, such as `{other[0][0]}`. Give the norms that it was trained with "
        "(--norm-encoder, --norm-decoder, --norm-batch-length-bins; `layer` for fairseq's own "
        "`transformer`), or start a new training from its weights: --init-from FILE with --task "
        f"{task} estimates the statistics that they lack."
    )
