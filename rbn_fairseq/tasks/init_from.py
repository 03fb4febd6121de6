"""A training that starts from the weights of another model, whose norms may be others."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import nn

from rbn_fairseq.checkpoints.files import read_checkpoint, refuse_folded
from rbn_fairseq.checkpoints.other_norms import load_weights
from rbn_fairseq.checkpoints.saves import LAST
from rbn_fairseq.diagnostics import ESTIMATES, collect_moments, set_population
from rbn_fairseq.diagnostics.batch_norms import population_norms
from rbn_fairseq.tasks.batches import collate, run_norms, sample_batches

__all__ = ["InitFromConfig", "InitFromTask"]

logger = logging.getLogger(__name__)

_BATCHES, _SEED = 200, 1  # as `rbn recalibrate` has them


@dataclass
class InitFromConfig(FairseqDataclass):
    """Options of the start."""

    init_from: Optional[str] = field(
        default=None,
        metadata={
            "help": "checkpoint of a `transformer` or `rbn_transformer` whose weights a new "
            "training starts from; its norms may be others: what it lacks of them is new, and "
            "running statistics are estimated on training batches. A training that resumes does "
            "not read it"
        },
    )
    # Known elsewhere; without a help text they do not become options.
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    continue_once: Optional[str] = II("checkpoint.continue_once")


class InitFromTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    With ``--init-from``, the weights are there when fairseq copies them for its optimizer, and the
    running statistics before the first update and the first measurement (behind the TID monitor
    among the bases). Random numbers are those of a training without it. Every process estimates
    the same statistics on the same batches.
    """

    cfg: Any
    training_batches: Any
    _lacking: Optional[list[str]] = None

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model; it starts from the given weights unless a training resumes.

        Raises:
            ValueError: if another option says what to start from, or the file does not fit.
        """
        asked = self.cfg.init_from is not None and not from_checkpoint
        if asked:
            self._refuse_other_starts()
        model: nn.Module = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        if asked and not (Path(self.cfg.save_dir) / LAST).exists():
            path = Path(self.cfg.init_from)
            state = read_checkpoint(path)
            refuse_folded(path, state, "Give --init-from the checkpoint that was folded.")
            told = state.get("task_state") or {}
            if "dictionaries" in told:  # are they the data's?
                self.load_state_dict({"dictionaries": told["dictionaries"]})  # type: ignore[attr-defined]
            self._lacking = load_weights(model, state["model"], self.cfg.init_from)
        return model

    def _refuse_other_starts(self) -> None:
        defaults = {
            "restore_file": LAST,
            "finetune_from_model": None,
            "continue_once": None,
        }
        for name, default in defaults.items():
            value = getattr(self.cfg, name)
            if value != default:
                raise ValueError(
                    f"--init-from and --{name.replace('_', '-')} `{value}` both say what to start "
                    "from. Leave one out."
                )

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Estimate, before the first update, the running statistics that the file lacks."""
        super().begin_epoch(epoch, model)  # type: ignore[misc]
        # Where processes do not share the save directory, some resume without having the file.
        if (
            self._lacking is not None
            and epoch == 1
            and not self.training_batches.iterations_in_epoch
        ):
            self._estimate(model, self._lacking)
        self._lacking = None

    def _estimate(self, model: nn.Module, lacking: Collection[str]) -> None:
        norms = {name: norm for name, norm in population_norms(model).items() if name in lacking}
        batches = sample_batches(self.training_batches, _BATCHES, _SEED) if norms else []
        samples = collate(self.training_batches.dataset, batches, model)
        layers = collect_moments(model, samples, run_norms, norms=norms)
        set_population(norms, layers, ESTIMATES[0])
        logger.info(
            "--init-from %s: loaded its weights; running statistics of %d norms estimated on %d "
            "training batches",
            *(self.cfg.init_from, len(norms), len(batches)),
        )
