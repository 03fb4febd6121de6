"""Starts a training from the weights of a model that may have other norms."""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.checkpoints.files import model_settings, read_checkpoint, refuse_folded
from rbn_fairseq.checkpoints.mending import LAST
from rbn_fairseq.diagnostics import ESTIMATES, collect_moments, population_norms, set_population
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.measuring.data_bin import refuse_other_dictionaries
from rbn_fairseq.models.state_dicts import ARRANGEMENT, difference
from rbn_fairseq.norms import split_statistics
from rbn_fairseq.norms.options import option

__all__ = ["InitFrom", "InitFromConfig", "load_weights"]

logger = logging.getLogger(__name__)

_BATCHES, _SEED = 200, 1  # as `rbn recalibrate` has them
_NORM = re.compile(r"(layer_norm|layernorm_embedding|\.fc2_norm|\.ffn_out|_attn_out|_proj\.norm)\.")
_SHOWN = 5  # names in a message
# Settings without weights of their own, which are no norms and change what the weights mean.
_FUNCTION = (
    "encoder_attention_heads", "decoder_attention_heads", "activation_fn",
    "no_scale_embedding", "no_token_positional_embeddings",
)  # fmt: skip


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
    norm_of = {name: name.rpartition(".population.")[0] for name in split_statistics(state)[1]}
    lacking = {norm for name, norm in norm_of.items() if name not in taken}
    taken = {name: value for name, value in taken.items() if norm_of.get(name) not in lacking}
    for name in state:
        norm, _, rest = name.rpartition(".layer_")
        if norm in lacking:  # PRepBN begins as the layer norm that the file has there
            taken[name] = taken.get(f"{norm}.{rest}", state[name])
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


def refuse_other_function(path: str, trained: Mapping[str, Any], model_cfg: Any) -> None:
    """Refuse weights that would mean something else in this model, though they fit.

    Args:
        path: the file that they are from, for the message.
        trained: settings of its model.
        model_cfg: those of this one.

    Raises:
        ValueError: if more than norms differs, or only the file's embeddings have unit length.
    """
    other = difference(trained, model_cfg, _FUNCTION)
    unit = getattr(model_cfg, "norm_unit_embeddings", False)  # fairseq's own models know none
    if trained.get("norm_unit_embeddings") and not unit:
        other = "--norm-unit-embeddings, without which the lengths of its embeddings mean nothing"
    if other:
        raise ValueError(
            f"--init-from `{path}`: its model was trained with {other}. Give that, too, or name "
            "another file."
        )


@dataclass
class InitFromConfig(FairseqDataclass):
    """Options of a training that starts from another model."""

    init_from: Optional[str] = option(
        None,
        "checkpoint of a `transformer` or `rbn_transformer` whose weights a new training starts "
        "from; its norms may be others: what it lacks of them is new, and running statistics are "
        "estimated on training batches, unless all norms are the same. A training that resumes "
        "does not read it",
    )


class InitFrom(Callback):
    """Starts a training from the weights of ``--init-from``.

    The weights are there when fairseq copies them for its optimizer, and the running statistics
    before the first update and the first measurement (so this stands before the TID monitor).
    Random numbers are those of a training without it. Every process estimates the same statistics
    on the same batches.
    """

    options = InitFromConfig

    _lacking: Optional[list[str]] = None

    def check(self, model_cfg: Any) -> None:
        """Refuse other options that set the starting point (``ValueError``)."""
        self._model_cfg = model_cfg
        if self.training.options.init_from is None:
            return
        defaults = {"restore_file": LAST, "finetune_from_model": None, "continue_once": None}
        for name, default in defaults.items():
            value = getattr(self.training.cfg.checkpoint, name)
            if value != default:
                raise ValueError(
                    f"--init-from and --{name.replace('_', '-')} `{value}` both say what to start "
                    "from. Leave one out."
                )

    def on_model(self, model: nn.Module) -> None:
        """Load the weights, unless the training resumes (``ValueError`` if they do not fit)."""
        name = self.training.options.init_from
        if name is None or (self.training.save_dir / LAST).exists():
            return
        path = Path(name)
        state = read_checkpoint(path)
        refuse_folded(path, state, "Give --init-from the checkpoint that was folded.")
        refuse_other_dictionaries(self.training.task, state)
        settings = model_settings(state)
        refuse_other_function(name, settings, self._model_cfg)
        self._lacking = load_weights(model, state["model"], name)
        if difference(settings, self._model_cfg, ARRANGEMENT):
            # Statistics depend on the norms below: the file's are those of other activations.
            self._lacking = sorted(population_norms(model))

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Estimate, before the first update, running statistics that the file has not."""
        # Where processes do not share the save directory, some resume without having the file.
        begins = epoch == 1 and not self.training.batches.iterations_in_epoch
        if self._lacking is not None and begins:
            self._estimate(model, self._lacking)
        self._lacking = None

    def _estimate(self, model: nn.Module, lacking: Collection[str]) -> None:
        norms = {name: norm for name, norm in population_norms(model).items() if name in lacking}
        iterator, adapter = self.training.batches, self.training.adapter
        batches = draw_batches(iterator.frozen_batches, _BATCHES, _SEED) if norms else []
        samples = collate(iterator.dataset, batches, model)
        layers = collect_moments(model, samples, adapter.run_norms, norms=norms)
        set_population(norms, layers, ESTIMATES[0])
        logger.info(
            f"--init-from: running statistics of {len(norms)} norms estimated on {len(batches)} "
            "training batches"
        )
