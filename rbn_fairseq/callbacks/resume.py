"""Resumes interrupted trainings, as if they had not been interrupted."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from fairseq.logging import metrics
from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.checkpoints.files import (
    model_settings,
    read_checkpoint,
    refuse_folded,
    updates_of,
)
from rbn_fairseq.checkpoints.mending import LAST, mend
from rbn_fairseq.measuring.data_bin import refuse_other_dictionaries
from rbn_fairseq.models.state_dicts import refuse_lost_length_bins, refuse_other_norms
from rbn_fairseq.norms.moments import process_rank

__all__ = ["Resume"]

logger = logging.getLogger(__name__)


def _patience() -> dict[str, Any]:
    """Return the state of --patience, which fairseq keeps in attributes of a function."""
    train = sys.modules.get("fairseq_cli.train")
    return vars(train.should_stop_early) if train else {}


class Resume(Callback):
    """Resumes a training from its last checkpoint.

    - Where a save was cut off, it resumes from the newest whole checkpoint.
    - A checkpoint is refused where the dictionaries are not those that it was trained with, where
      it was folded, or where it lacks what the training would go on with.
    - Where updates or epochs are counted anew (``--reset-optimizer``, ``--reset-dataloader``) the
      log says so; what was measured before, by what is counted, is kept under another name.
    """

    # What is counted anew, after how many updates, and of which start of the optimizer.
    _reset: Optional[tuple[str, int, int]] = None

    def check(self, model_cfg: Any) -> None:
        """Check the checkpoint that the training starts from, on the first process.

        Raises:
            ValueError: if there is no whole checkpoint to resume from, it is a folded one, or the
                training would lose its norms, its optimizer's state or bins of lengths.
        """
        if process_rank() > 0:
            return
        cfg = self.training.cfg.checkpoint
        start = last = self.training.save_dir / LAST
        given, resumes = "", True
        # As in fairseq's checkpoint_utils.load_checkpoint.
        plain = cfg.restore_file == LAST
        other = (cfg.continue_once or cfg.finetune_from_model) if plain else None
        if not plain and Path(cfg.restore_file).resolve() != last.resolve():
            given, start = "--restore-file", Path(cfg.restore_file)
        else:
            chosen = other or getattr(self.training.options, "init_from", None)
            if not cfg.no_last_checkpoints:
                mend(last.parent, Path(chosen) if chosen else None)
            if other and not last.exists():
                start, resumes = Path(other), bool(cfg.continue_once)
                given = "--continue-once" if resumes else "--finetune-from-model"
        inside = start.resolve().is_relative_to(last.parent.resolve())
        if resumes and inside and not start.exists():
            if given:  # again after an interruption, it may name what will have been saved
                logger.warning("%s %s is not there yet: training begins anew", given, start)
            return
        try:
            state = read_checkpoint(start)
        except ValueError as error:
            raise ValueError(f"{given or '--save-dir'}: {error}") from error
        refuse_folded(start, state, "Train from the checkpoint that was folded.")
        refuse_other_norms(start, model_settings(state), model_cfg)
        refuse_lost_length_bins(start, state["model"], model_cfg)
        if resumes and not state.get("last_optimizer_state") and not cfg.reset_optimizer:
            raise ValueError(
                f"`{start}` has no state of the optimizer, as an average has none. Give "
                "--reset-optimizer to go on from its epoch with a new one, or start a new training "
                "from its weights: --finetune-from-model or --init-from, and another --save-dir."
            )
        refuse_other_dictionaries(self.training.task, state)
        reset = "updates" if cfg.reset_optimizer else "epochs" if cfg.reset_dataloader else None
        if reset and start.resolve().parent == last.resolve().parent:
            starts = len(state.get("optimizer_history") or ())
            self._reset = reset, updates_of(state), starts

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Start the clock of the log's ``wall``, which fairseq stops where it loads an epoch's."""
        wall = metrics.get_meter("default", "wall")
        if wall is not None and wall.start_time is None:
            wall.start()

    def on_attempt(self, model: nn.Module) -> None:
        """Tell of a reset; set aside what was measured before it, by what is counted anew."""
        if self._reset is None:
            return
        what, update, number = self._reset
        logger.warning("%s are counted anew, after update %d", what, update)  # a report reads it
        for name in ("tid", "conditioning") if what == "updates" else ("tid",):
            path = self.training.save_dir / f"{name}.jsonl"
            aside = path.with_name(f"{name}-before-reset-{number}-at-{update}.jsonl")
            if path.exists() and not aside.exists():
                path.rename(aside)
                logger.warning("`%s` is now `%s`", path, aside)
        self._reset = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of --patience."""
        return {"patience": dict(_patience())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read the state of --patience; fairseq alone would start its count anew.

        It does so with the best checkpoint, too, where the meters or the optimizer are reset.
        """
        chosen = self.training.cfg.checkpoint
        if not (chosen.reset_meters or chosen.reset_optimizer):
            _patience().update(state["patience"])
