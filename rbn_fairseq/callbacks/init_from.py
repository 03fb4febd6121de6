"""Starts a training from the weights of a model that may have other norms."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.checkpoints.files import read_checkpoint, refuse_folded
from rbn_fairseq.checkpoints.mending import LAST
from rbn_fairseq.checkpoints.other_norms import load_weights
from rbn_fairseq.diagnostics import ESTIMATES, collect_moments, population_norms, set_population
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.measuring.data_bin import refuse_other_dictionaries

__all__ = ["InitFrom", "InitFromConfig"]

logger = logging.getLogger(__name__)

_BATCHES, _SEED = 200, 1  # as `rbn recalibrate` has them


@dataclass
class InitFromConfig(FairseqDataclass):
    """Options of a training that starts from another model."""

    init_from: Optional[str] = field(
        default=None,
        metadata={
            "help": "checkpoint of a `transformer` or `rbn_transformer` whose weights a new "
            "training starts from; its norms may be others: what it lacks of them is new, and "
            "running statistics are estimated on training batches. A training that resumes does "
            "not read it"
        },
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
        self._lacking = load_weights(model, state["model"], name)

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Estimate, before the first update, the running statistics that the file lacks."""
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
