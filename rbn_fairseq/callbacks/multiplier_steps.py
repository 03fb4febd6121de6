"""Steps the penalty's warm-up and multipliers with the updates."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.criterions.multipliers import Multipliers
from rbn_fairseq.criterions.penalty import RBNPenalty
from rbn_fairseq.measuring.records import write_multipliers, write_records
from rbn_fairseq.norms.moments import process_rank

__all__ = ["MultiplierSteps"]

logger = logging.getLogger(__name__)


class MultiplierSteps(Callback):
    """Keeps the penalty in step with the updates.

    - The penalty knows the number of updates, for its warm-up.
    - The multipliers of ``--rbn-target-tid`` step once with every update that is made, on all
      processes alike. An attempt at an update that was dropped leaves no trace in them.
    - Checkpoints keep them. Where a training goes on without those of some batch norm, a line of
      the log says that they start at 0.
    - At the end of every epoch ``SAVE_DIR/multipliers.jsonl`` gets a line for each batch norm.
    """

    provides = "penalty"

    _read = False  # whether a checkpoint's multipliers were, or there is none

    @property
    def _multipliers(self) -> Optional[Multipliers]:
        criterion = self.training.criterion
        return criterion.multipliers if isinstance(criterion, RBNPenalty) else None

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Move the multipliers to the device of the model."""
        if self._multipliers is not None:
            self._multipliers.to(next(model.parameters()).device)

    def on_attempt(self, model: nn.Module) -> None:
        """Forget the gaps of an attempt that was dropped."""
        if self._multipliers is not None:
            self._multipliers.forget()

    @contextmanager
    def step(self, sample: Any, model: nn.Module, update: int, dummy: bool) -> Iterator[None]:
        """Set the number of updates in the penalty."""
        if isinstance(self.training.criterion, RBNPenalty):
            self.training.criterion.updates = update
            if update > 0 and not self._read:
                self.load_state_dict({})
            self._read = True
        yield

    def on_update(self, lost: bool) -> None:
        """Step the multipliers."""
        if self._multipliers is not None:
            if lost:
                self._multipliers.forget()
            self._multipliers.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the multipliers by batch norm."""
        return self._multipliers.state_dict() if self._multipliers is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read the multipliers."""
        self._read = True
        new = self._multipliers.load_state_dict(state) if self._multipliers is not None else []
        if new:
            logger.info("multipliers start at 0, none were read: %s", ", ".join(new))

    def on_epoch_end(self, epoch: int, model: nn.Module) -> None:
        """Write and log the multipliers."""
        if self._multipliers is None or process_rank() > 0:
            return
        where = {"epoch": epoch, "update": self.training.updates}
        records = [where | record for record in self._multipliers.records()]
        write_records(self.training.save_dir / "multipliers.jsonl", records)
        if self.training.cfg.common.tensorboard_logdir:
            write_multipliers(Path(self.training.cfg.common.tensorboard_logdir), records)
        mean, std = (
            [record[f"{kind}_multiplier"] for record in records] for kind in ("mean", "std")
        )
        logger.info(
            "multipliers | epoch %d | update %d | mean: %.3g to %.3g, std: %.3g to %.3g over "
            "%d batch norms",
            epoch,
            self.training.updates,
            min(mean),
            max(mean),
            min(std),
            max(std),
            len(records),
        )
