"""The TID monitor: measures every batch norm before training and at the end of epochs."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.diagnostics import TID, average_tid, batch_norms, collect_moments
from rbn_fairseq.measuring.batches import collate, draw_batches, joint
from rbn_fairseq.measuring.records import norm_records, read_tid, write_records
from rbn_fairseq.norms import has_batch_norm
from rbn_fairseq.norms.moments import process_rank, world_size
from rbn_fairseq.norms.options import option

__all__ = ["TIDMonitor", "TIDMonitorConfig"]

logger = logging.getLogger(__name__)


@dataclass
class TIDMonitorConfig(FairseqDataclass):
    """Options of the TID monitor."""

    no_tid: bool = option(False, "TID monitor: do not measure TID during training")
    tid_batches: int = option(
        200,
        "TID monitor: number of training batches to measure on, a seeded uniform sample, the same "
        "every epoch (with --length-mixing, or data in parts, batches are others in each); 0 = all",
        range="[0, inf)",
    )
    tid_seed: int = option(1, "TID monitor: seed of that sample")
    tid_dropout: bool = option(False, "TID monitor: leave dropout on while measuring")


def _percents(tid: TID) -> str:
    return f"mean {100 * tid.mean:.2f} %, variance {100 * tid.var:.2f} %"


class TIDMonitor(Callback):
    """Measures TID before training and at the end of every epoch that is validated.

    Measures on training batches in one pass, with dropout off unless asked for, and leaves
    modes, random numbers and statistics as they were, so that training is the same with and
    without it. Writes one line per layer to ``SAVE_DIR/tid.jsonl`` and logs the last layer and
    the average over layers, of TID and of TID given the length (also to TensorBoard:
    ``tid_mean_last``, ``conditional_tid_mean_last`` and so on, as fractions).
    """

    options = TIDMonitorConfig
    _begins = False  # the first epoch, whose first update has not been tried yet

    def on_model(self, model: nn.Module) -> None:
        """Check at which ends of epochs there is a validation, and so a measurement.

        Raises:
            ValueError: if at none.
        """
        measured = has_batch_norm(model) and not self.training.options.no_tid
        if measured and self.training.cfg.dataset.disable_validation:
            raise ValueError(
                "--disable-validation takes away the end of the epoch at which TID is measured. "
                "Leave it out, or turn the monitor off with --no-tid."
            )
        if measured and process_rank() == 0:
            self._warn_of_gaps(self.training.cfg.dataset)

    def _warn_of_gaps(self, dataset: Any) -> None:
        interval, after = dataset.validate_interval, dataset.validate_after_updates
        gaps = []
        if interval > 1:
            gaps.append(f"epochs that {interval} does not divide (--validate-interval)")
        if after > 0:
            gaps.append(f"epochs that end before update {after} (--validate-after-updates)")
        if gaps:
            logger.warning(
                "TID is measured where validation is, so not at %s", " nor at ".join(gaps)
            )

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Note whether training may begin."""
        self._begins = epoch == 1 and self.training.batches.iterations_in_epoch == 0

    def on_attempt(self, model: nn.Module) -> None:
        """Measure once before training; only now it is known how many updates were made."""
        if self._begins and self.training.updates == 0 and self.training.model is not None:
            self._measure(0, 0, self.training.model)  # not wrapped, as at the end of epochs
        self._begins = False

    def on_epoch_end(self, epoch: int, model: nn.Module) -> None:
        """Measure TID."""
        self._measure(epoch, self.training.updates, model)

    def _measure(self, epoch: int, update: int, model: nn.Module) -> None:
        options, iterator = self.training.options, self.training.batches
        if options.no_tid or not has_batch_norm(model):
            return
        total = len(iterator.frozen_batches)
        shared = world_size(
            any(getattr(norm, "sync", False) for norm in batch_norms(model).values())
        )
        if shared > 1:  # every process takes its part in the joint batches
            batches = self._part_of_joint(shared)
        elif process_rank() > 0:
            return
        else:
            batches = draw_batches(iterator.frozen_batches, options.tid_batches, options.tid_seed)
        run_norms, dropout = self.training.adapter.run_norms, options.tid_dropout
        samples = collate(iterator.dataset, batches, model)
        layers = collect_moments(model, samples, run_norms, dropout)
        if not layers or process_rank() > 0:
            return
        records = norm_records(layers, epoch, update, total // shared, dropout=dropout)
        write_records(self.training.save_dir / "tid.jsonl", records, one_an_epoch=True)
        self._log(epoch, update, records)

    def _part_of_joint(self, processes: int) -> list[Any]:
        """Return this process's parts of the joint batches drawn, composed as in training."""
        options, iterator = self.training.options, self.training.batches
        shuffled = iterator.shuffle and not iterator.grouped_shuffling  # else they are neighbours
        rng = np.random.default_rng(options.tid_seed) if shuffled else None
        together = joint(len(iterator.frozen_batches), processes, rng)
        number = math.ceil(options.tid_batches / processes)
        drawn = draw_batches(together.tolist(), number, options.tid_seed)
        return [iterator.frozen_batches[places[process_rank()]] for places in drawn]

    def _log(self, epoch: int, update: int, records: list[dict[str, Any]]) -> None:
        for title, name in (("TID", "tid"), ("TID given the length", "conditional_tid")):
            values = read_tid(records, name)
            if not values:
                continue
            last, average = list(values.values())[-1], average_tid(values)
            used = records[-1]["batches"]
            logger.info(
                f"{title} | epoch {epoch} | update {update} | last layer: {_percents(last)} | "
                f"average of {len(values)} layers: {_percents(average)} | {used} batches"
            )
            if epoch > 0:
                # Weight 0: the latest measurement of an epoch, which may have had two, by a resume.
                for place, value in (("last", last), ("average", average)):
                    metrics.log_scalar(f"{name}_mean_{place}", value.mean, 0, round=5)
                    metrics.log_scalar(f"{name}_var_{place}", value.var, 0, round=5)
