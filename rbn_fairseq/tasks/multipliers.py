"""The penalty told of the training around it: its warm-up, and the steps of its multipliers."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import nn

from rbn_fairseq.criterions.multipliers import Multipliers
from rbn_fairseq.criterions.penalty import RBNPenalty
from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.tasks.records import write_records
from rbn_fairseq.tasks.tensorboard import write_multipliers

__all__ = ["MultiplierConfig", "MultiplierTask"]

logger = logging.getLogger(__name__)


@dataclass
class MultiplierConfig(FairseqDataclass):
    """What the task knows of the training around it; without a help text no options."""

    save_dir: str = II("checkpoint.save_dir")
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")


class MultiplierTask:
    """Mixin for a fairseq task with ``RunningStatisticsTask``; put it before that one.

    - The penalty knows the number of updates, for its warm-up.
    - The multipliers of ``--rbn-target-tid`` step once with every update that is made, on all
      processes alike. An attempt at an update that was dropped leaves no trace in them.
    - Checkpoints keep them. Where a training goes on without those of some batch norm, a line of
      the log says that they start at 0.
    - At the end of every epoch ``SAVE_DIR/multipliers.jsonl`` gets a line for each batch norm.
    """

    guides_penalty = True
    cfg: Any
    updates: int
    training_batches: Any
    _criterion: Any
    _read = False  # whether a checkpoint's multipliers were, or there is none

    @property
    def _multipliers(self) -> Optional[Multipliers]:
        criterion = self._criterion
        return criterion.multipliers if isinstance(criterion, RBNPenalty) else None

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Bring the multipliers to where the model is."""
        super().begin_epoch(epoch, model)  # type: ignore[misc]
        if self._multipliers is not None:
            self._multipliers.to(next(model.parameters()).device)

    def train_step(
        self,
        sample: Any,
        model: nn.Module,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Do fairseq's step; the penalty knows of which update."""
        if isinstance(criterion, RBNPenalty):
            criterion.updates = update_num
            if update_num > 0 and not self._read:
                self._read_multipliers({})
            self._read = True
        return super().train_step(  # type: ignore[misc]
            sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **kwargs
        )

    def begin_attempt(self, model: nn.Module) -> None:
        """Begin an attempt at an update."""
        super().begin_attempt(model)  # type: ignore[misc]
        if self._multipliers is not None:
            self._multipliers.forget()

    def end_attempt(self, lost: bool) -> None:
        """End it with an update."""
        super().end_attempt(lost)  # type: ignore[misc]
        if self._multipliers is not None:
            if lost:
                self._multipliers.forget()
            self._multipliers.step()

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps for every process."""
        state: dict[str, Any] = super().get_checkpoint_dict()  # type: ignore[misc]
        if self._multipliers is not None:
            state[type(self).__name__]["multipliers"] = self._multipliers.state_dict()
        return state

    def set_checkpoint_dict(self, state: Mapping[str, Any]) -> None:
        """Read it."""
        super().set_checkpoint_dict(state)  # type: ignore[misc]
        self._read_multipliers(state.get("multipliers", {}))

    def _read_multipliers(self, state: Mapping[str, Any]) -> None:
        self._read = True
        new = self._multipliers.load_state_dict(state) if self._multipliers is not None else []
        if new:
            logger.info("multipliers start at 0, none were read: %s", ", ".join(new))

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Write and log the multipliers if this validation ends an epoch."""
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]
        if self._multipliers is None or process_rank() > 0:
            return
        if self.training_batches.end_of_epoch():
            where = {"epoch": epoch, "update": self.updates}
            self._tell_multipliers([where | record for record in self._multipliers.records()])

    def _tell_multipliers(self, records: list[dict[str, Any]]) -> None:
        write_records(Path(self.cfg.save_dir) / "multipliers.jsonl", records)
        if self.cfg.tensorboard_logdir:
            write_multipliers(Path(self.cfg.tensorboard_logdir), records)
        mean, std = (
            [record[f"{kind}_multiplier"] for record in records] for kind in ("mean", "std")
        )
        logger.info(
            "multipliers | epoch %d | update %d | mean: %.3g to %.3g, std: %.3g to %.3g over "
            "%d batch norms",
            *(records[0]["epoch"], records[0]["update"]),
            *(min(mean), max(mean), min(std), max(std), len(records)),
        )
