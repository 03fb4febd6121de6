"""Checkpoints for inference alone, whose norms with running statistics are folded."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

from rbn_fairseq.checkpoints.files import (
    NO_EMBEDDINGS,
    drop_moving_average,
    own_settings,
    read_checkpoint,
    refuse_folded,
)
from rbn_fairseq.models.encoding import EncodingModel
from rbn_fairseq.models.folding import fold_norms
from rbn_fairseq.models.state_dicts import describe_plans
from rbn_fairseq.models.transformer import RBNTransformerModel

__all__ = ["fold_checkpoint"]


def _dictionary(types: int) -> Dictionary:
    dictionary = Dictionary()
    for index in range(types - len(dictionary)):
        dictionary.add_symbol(str(index))
    return dictionary


def _build(state: dict[str, Any]) -> Any:
    """Build the model of a checkpoint in fp64, without the data that it was trained on."""
    settings = state["cfg"]["model"]
    kind: Any = ARCH_MODEL_REGISTRY.get(settings["_name"], RBNTransformerModel)
    names = [f"{side}.embed_tokens.weight" for side in kind.kind.sides]
    if not state["model"].keys() >= {*names}:
        raise ValueError("A model with --adaptive-input cannot be folded. Use it as it is.")
    sizes = [len(state["model"][name]) for name in names]
    if issubclass(kind, EncodingModel):
        sizes.append(len(state["model"]["output_projection.weight"]) + kind.first_label)
    elif "decoder.output_projection.weight" in state["model"]:  # --output-dictionary-size
        sizes.append(len(state["model"]["decoder.output_projection.weight"]))
    source, target = _dictionary(sizes[0]), _dictionary(sizes[-1])
    task = SimpleNamespace(
        source_dictionary=source, target_dictionary=target, keeps_statistics=True
    )
    model = kind.build_model(Namespace(**{**settings, **NO_EMBEDDINGS}), task).double()
    model.load_state_dict(state["model"])
    return model


def fold_checkpoint(path: Path) -> dict[str, Any]:
    """Fold the norms of a checkpoint (:func:`rbn_fairseq.models.folding.fold_norms`), in fp64.

    The result has another plan and loads like any checkpoint. Its weights keep their dtype,
    multiply-adds are fp32. The optimizer's state and fairseq's moving average are left out.

    Raises:
        ValueError: if the file cannot be read, was made without this plugin, is folded already,
            has no norm with running statistics, or becomes infinite.
    """
    state = read_checkpoint(path)
    settings = own_settings(path, state)["model"]
    refuse_folded(path, state, "Use it as it is.")
    model = _build(state)
    folding = fold_norms(model)
    if not folding.vanished and not folding.left:
        raise ValueError(
            f"There is nothing to fold in `{path}` ({describe_plans(settings)}): its model has no "
            "norm with running statistics, or has them by sentence length "
            "(--norm-batch-length-bins), which no linear layer can take in. Use the checkpoint as "
            "it is."
        )
    dtype = state["model"][f"{model.kind.sides[0]}.embed_tokens.weight"].dtype
    state["model"] = model.to(dtype).state_dict()
    broken = [name for name, value in state["model"].items() if not value.isfinite().all()]
    if broken:
        raise ValueError(
            f"Folded, `{broken[0]}` of `{path}` would not be finite in {dtype}. Use the checkpoint "
            "as it is; `rbn doctor --checkpoint` tells whether it is damaged itself."
        )
    state["cfg"]["model"] = {**settings, **folding.settings}
    state.pop("last_optimizer_state", None)
    drop_moving_average(state)
    note = {"vanished": folding.vanished, "left": folding.left, "by_length": folding.by_length}
    state["rbn_fairseq"] = {**(state.get("rbn_fairseq") or {}), "folded": note}
    return state
