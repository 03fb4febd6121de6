"""Schedules of norms that do not end before the training does."""

import logging
import math
from typing import Any

from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.norms import PopulationNorm
from rbn_fairseq.norms.moments import process_rank

__all__ = ["Schedules"]

logger = logging.getLogger(__name__)


class Schedules(Callback):
    """Refuses schedules that end after the training, where evaluation waits for that end.

    Others are named by a warning, as are all where parts of the data make epochs of other lengths.
    """

    _checked = False

    def on_batches(self, iterator: Any) -> None:
        """Check the schedules of a new model; ``rbn train --check`` comes no further.

        Raises:
            ValueError: if one ends too late.
        """
        if self.training.model is not None:
            self._check(self.training.model, resumed=False)

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Check those of a checkpoint's; only now it is known where in an epoch training goes on.

        Raises:
            ValueError: if one ends too late.
        """
        self._check(model, resumed=True)

    def _check(self, model: nn.Module, resumed: bool) -> None:
        norms = [part for part in model.modules() if isinstance(part, PopulationNorm)]
        if self._checked or not norms or resumed != (norms[0]._update > 0):
            return
        self._checked = True
        updates = self._updates(norms[0]._update)
        # Of data in several parts this one is known, and stands for those of the other epochs.
        parts = self.training.task.has_sharded_data(self.training.train_subset)
        ends = {
            norm.options.flag(name): (getattr(norm.options, name), norm)
            for norm in norms
            for name in norm.schedule
        }
        for option, (end, norm) in ends.items():
            longer = (
                f"{option} {end} is longer than this training, which has "
                f"{'about ' if parts else ''}{updates:.0f} updates: "
            )
            if end > updates and norm.must_end and not parts:
                raise ValueError(
                    f"{longer}evaluation is `{norm.name}` as it is behind that update alone. Set "
                    f"it to {updates:.0f} or less, or train longer."
                )
            if end > updates and process_rank() == 0:
                logger.warning(f"{longer}the norm will not leave its schedule. Set it lower.")

    def _updates(self, made: int) -> float:
        """Return how many updates the training will have made; infinity where that is not known.

        Args:
            made: how many the checkpoint that it starts from had; 0 = there is none.
        """
        cfg, chosen = self.training.cfg.optimization, self.training.cfg.checkpoint
        most = float(cfg.max_update if cfg.max_update > 0 else math.inf)
        if cfg.max_epoch <= 0:
            return most
        batches = self.training.batches
        length, done = len(batches), int(batches.iterations_in_epoch)
        if batches.grouped_shuffling:  # fairseq drops what is not one batch for each process
            length = len(batches.frozen_batches) // batches.num_shards
        frequencies: list[int] = [
            cfg.update_freq[min(epoch, len(cfg.update_freq)) - 1]
            for epoch in range(batches.epoch, cfg.max_epoch + 1)
        ]
        if done % frequencies[0]:  # as with another --update-freq; fairseq may repeat the epoch
            return most
        if chosen.reset_optimizer or (chosen.finetune_from_model and not self.training.resumes):
            made = 0
        for number in frequencies:  # fairseq skips the last batch, and what makes no whole update
            skips = cfg.skip_remainder_batch
            made += (length - 1) // number if skips else math.ceil(length / number)
        return min(most, made - done // frequencies[0])
