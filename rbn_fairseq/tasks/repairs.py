"""Fixes of fairseq's tasks that no callback can make, because they change fairseq's own steps."""

import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from fairseq import checkpoint_utils
from fairseq.data import iterators
from fairseq.logging import progress_bar
from fairseq.models import FairseqEncoder
from fairseq.tasks import FairseqTask
from torch import nn

from rbn_fairseq.callbacks.base import Training
from rbn_fairseq.measuring.adapters import TaskAdapter
from rbn_fairseq.measuring.data_bin import fingerprint, refuse_other_dictionaries

__all__ = ["FairseqRepairs"]

_chunks = iterators._chunk_iterator


def _dummies_first(*args: Any, **kwargs: Any) -> Iterator[list[Any]]:
    """Group the batches of updates as fairseq does, those of an update that are empty first.

    fairseq takes an update's last batch for all: where it is a dummy, sample size and logs of the
    real ones before it do not count, but their gradients do.
    """
    for chunk in _chunks(*args, **kwargs):
        yield sorted(chunk, key=bool)


class FairseqRepairs(FairseqTask):
    """Mixin for a task with callbacks; put it behind them, before fairseq's own.

    - A run is free of what an earlier one in the same process left behind.
    - A data directory without dictionaries is refused.
    - A checkpoint is refused where the dictionaries are not those that it was trained with.
    - A resumed run sees the same batches as an uninterrupted one.
    - Of an update in which a process runs out of data, the batches that it has count.
    - Validation and generation read every sentence (fairseq drops up to 7).
    - fairseq's search for the module that makes NaN comes to its end.
    """

    adapter: ClassVar[TaskAdapter]
    training: Training

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Set the task up.

        Raises:
            ValueError: if the data directory is missing or empty, or lacks a language.
        """
        # fairseq keeps these for the life of the process: the next job of a sweep would inherit
        # the best score and the patience, and write into the first job's TensorBoard files.
        vars(checkpoint_utils.save_checkpoint).clear()
        if "fairseq_cli.train" in sys.modules:  # importing it would set up its logging
            vars(sys.modules["fairseq_cli.train"].should_stop_early).clear()
        for writer in progress_bar._tensorboard_writers.values():
            writer.close()
        progress_bar._tensorboard_writers.clear()
        iterators._chunk_iterator = _dummies_first
        cls.adapter.check_data(cfg)
        return super().setup_task(cfg, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the task's part of a checkpoint, which is read with its model."""
        dictionaries = [fingerprint(words) for words in self.adapter.dictionaries(self)]
        return {**super().state_dict(), "dictionaries": dictionaries}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Read the task's part of a checkpoint.

        Raises:
            ValueError: if the checkpoint was trained with other dictionaries.
        """
        refuse_other_dictionaries(self, {"task_state": state_dict})
        super().load_state_dict(
            {name: value for name, value in state_dict.items() if name != "dictionaries"}
        )

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator, with three fixes.

        fairseq composes batches with the seed of the epoch that it starts in and keeps them for
        all later epochs, so that after a resume it would train on other batches. And where the
        number of sentences is not a multiple of --required-batch-size-multiple (8) it drops the
        rest, the longest ones: no matter in training, whose iterators alone are asked for by
        epoch, but what is translated or validated must be whole. And of --curriculum it keeps the
        first epoch's order for all, until it is resumed.
        """
        if "epoch" not in kwargs or dataset is not self.datasets.get(self.training.train_subset):
            kwargs["required_batch_size_multiple"] = 1
        keep = self.can_reuse_epoch_itr(dataset) and not (
            kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
        )
        if not keep or dataset in self.dataset_to_epoch_iter:
            return super().get_batch_iterator(dataset, *args, **kwargs)
        epoch = kwargs.pop("epoch", 1)
        iterator = super().get_batch_iterator(dataset, *args, epoch=1, **kwargs)
        dataset.set_epoch(epoch)
        iterator.epoch = epoch
        if self.training.cfg.dataset.curriculum > 0:
            iterator.reuse_dataloader = False
        return iterator

    def train_step(self, sample: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Do fairseq's step; a dummy batch has no sample size and no logs.

        In fairseq's search for NaN it is done without the hooks that encoders cannot have: its
        ``NanDetector`` registers torch's non-full backward hooks on every module. For these torch
        looks for a tensor in the output; an encoder's is a dictionary of lists, and torch raises
        ``StopIteration``.
        """
        for part in model.modules():
            if isinstance(part, FairseqEncoder) and part._is_full_backward_hook is False:
                part._backward_hooks.clear()
        loss, size, log = super().train_step(sample, model, *args, **kwargs)
        if kwargs.get("ignore_grad"):
            size, log = 0 * size, {name: 0 * value for name, value in log.items()}
        return loss, size, log
