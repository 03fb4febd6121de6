"""What training with batch statistics asks of a fairseq task."""

import hashlib
import logging
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import progress_bar
from omegaconf import II
from torch import nn

from rbn_fairseq.checkpoints.files import mend_last, read_checkpoint
from rbn_fairseq.criterions import RBNPenalty
from rbn_fairseq.norms import PopulationNorm, dummy_batch
from rbn_fairseq.norms.moments import mean_over_processes, process_rank

__all__ = ["BatchStatisticsTask", "TrainingConfig", "check_data", "fingerprint"]

logger = logging.getLogger(__name__)


@dataclass
class TrainingConfig(FairseqDataclass):
    """What the task knows of the training around it; without a help text no options."""

    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    max_epoch: int = II("optimization.max_epoch")
    max_update: int = II("optimization.max_update")
    update_freq: list[int] = II("optimization.update_freq")


def check_data(path: Optional[str]) -> None:
    """Refuse a data directory that fairseq-preprocess did not fill.

    Raises:
        ValueError: naming the directory and what is missing.
    """
    first = (path or "").split(os.pathsep)[0]
    if not os.path.isdir(first):
        raise ValueError(
            f"The data directory `{first}` does not exist. Make one with fairseq-preprocess."
        )
    if not any(name.startswith("dict.") for name in os.listdir(first)):
        raise ValueError(
            f"The data directory `{first}` has no dictionary (dict.LANG.txt). Fill it with "
            "fairseq-preprocess --destdir, or name the directory that it filled."
        )


def fingerprint(dictionary: Dictionary) -> str:
    """Return a short hash of a dictionary's symbols, in order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()[:16]


class BatchStatisticsTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - A warning tells of norms whose schedule ends after the training.
    - The criterion's penalty and the model are checked against each other at the start.
    - fairseq's dummy batches (on processes whose data ran out) leave all statistics alone.
    - Processes that do not synchronise their norms agree on the population statistics before
      each validation. (A checkpoint saved without validating first holds process 0's.)
    - A resumed run sees the same batches as an uninterrupted one.
    - Where the last checkpoint was cut off, training resumes from the newest whole one.
    - Validation and generation read every sentence (fairseq drops up to 7).
    - A checkpoint is refused where the dictionaries are not those that it was trained with.
    """

    _model: Optional[nn.Module] = None
    _checked_schedules = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Set the task up, free of what an earlier run in this process left behind.

        Raises:
            ValueError: if the data directory is missing or empty.
        """
        # fairseq keeps these for the life of the process: the next job of a sweep would inherit
        # the best score and the patience, and write into the first job's TensorBoard files.
        vars(checkpoint_utils.save_checkpoint).clear()
        if "fairseq_cli.train" in sys.modules:  # importing it would set up its logging
            vars(sys.modules["fairseq_cli.train"].should_stop_early).clear()
        for writer in progress_bar._tensorboard_writers.values():
            writer.close()
        progress_bar._tensorboard_writers.clear()
        check_data(cfg.data)
        return super().setup_task(cfg, **kwargs)  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dictionaries = [fingerprint(d) for d in self._own_dictionaries()]

    def _own_dictionaries(self) -> list[Dictionary]:
        both = (self.source_dictionary, self.target_dictionary)  # type: ignore[attr-defined]
        return [dictionary for dictionary in both if dictionary is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the task's part of a checkpoint."""
        return {**super().state_dict(), "dictionaries": self._dictionaries}  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Read the task's part of a checkpoint.

        Raises:
            ValueError: if the checkpoint was trained with other dictionaries.
        """
        rest = dict(state_dict)
        if rest.pop("dictionaries", self._dictionaries) != self._dictionaries:
            raise ValueError(
                "The dictionaries of the data directory are not those that the checkpoint was "
                "trained with. Give the directory that it was trained on, or preprocess the text "
                "with its dictionaries (fairseq-preprocess --srcdict, --tgtdict)."
            )
        super().load_state_dict(rest)  # type: ignore[misc]

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model.

        Raises:
            ValueError: if training should resume from a damaged checkpoint and there is no other.
        """
        if not from_checkpoint and self.cfg.restore_file == "checkpoint_last.pt":  # type: ignore[attr-defined]
            self._resume(Path(self.cfg.save_dir))  # type: ignore[attr-defined]
        self._model = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        return self._model

    def _resume(self, directory: Path) -> None:
        if process_rank() > 0:  # the first process writes, checks and measures
            return
        found = mend_last(directory)
        if found is not None:
            logger.warning("checkpoint_last.pt is damaged; resuming from %s", found)
        last = directory / "checkpoint_last.pt"
        if last.exists():  # fairseq saves the task's state, but does not restore it for training
            self.load_state_dict(read_checkpoint(last, mmap=True).get("task_state") or {})

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion and check that the model gives its penalty something to act on.

        Raises:
            ValueError: if it does not.
        """
        criterion = super().build_criterion(cfg, from_checkpoint)  # type: ignore[misc]
        if isinstance(criterion, RBNPenalty) and self._model is not None:
            criterion.check_model(self._model)
        return criterion

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator, mended in two places.

        fairseq composes batches with the seed of the epoch that it starts in and keeps them for
        all later epochs, so that after a resume it would train on other batches. And where the
        number of sentences is not a multiple of --required-batch-size-multiple (8) it drops the
        rest, the longest ones: no matter in training, but a test set must be whole.
        """
        if dataset is not self.datasets.get(self.cfg.train_subset):  # type: ignore[attr-defined]
            kwargs["required_batch_size_multiple"] = 1
        keep = self.can_reuse_epoch_itr(dataset) and not (  # type: ignore[attr-defined]
            kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
        )
        if not keep or dataset in self.dataset_to_epoch_iter:  # type: ignore[attr-defined]
            return super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        epoch = kwargs.pop("epoch", 1)
        iterator = super().get_batch_iterator(dataset, *args, epoch=1, **kwargs)  # type: ignore[misc]
        dataset.set_epoch(epoch)
        iterator.epoch = epoch
        return iterator

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Warn, at the start, of norms whose schedule is longer than the training."""
        super().begin_epoch(epoch, model)  # type: ignore[misc]
        if not self._checked_schedules and process_rank() == 0:
            self._check_schedules(model)
        self._checked_schedules = True

    def _check_schedules(self, model: nn.Module) -> None:
        cfg, updates = self.cfg, math.inf  # type: ignore[attr-defined]
        dataset = self.datasets[cfg.train_subset]  # type: ignore[attr-defined]
        # fairseq keeps no iterator where each epoch makes its own, as for data in several parts.
        iterator = self.dataset_to_epoch_iter.get(dataset)  # type: ignore[attr-defined]
        if cfg.max_epoch > 0 and iterator is not None:
            updates = sum(
                math.ceil(len(iterator) / cfg.update_freq[min(epoch, len(cfg.update_freq) - 1)])
                for epoch in range(cfg.max_epoch)
            )
        if cfg.max_update > 0:
            updates = min(updates, cfg.max_update)
        norms = [part for part in model.modules() if isinstance(part, PopulationNorm)]
        ends = {option: end for norm in norms for option, end in norm.schedule().items()}
        for option, end in ends.items():
            if end > updates:
                logger.warning(
                    "%s %d is longer than this training, which has %d updates: the norm will not "
                    "leave its schedule. Set it lower.",
                    *(option, end, updates),
                )

    def train_step(self, *args: Any, ignore_grad: bool = False, **kwargs: Any) -> Any:
        """Do fairseq's step; a dummy batch (``ignore_grad``) leaves all statistics alone."""
        if not ignore_grad:
            return super().train_step(*args, **kwargs)  # type: ignore[misc]
        with dummy_batch():
            return super().train_step(*args, ignore_grad=True, **kwargs)  # type: ignore[misc]

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Let processes that do not synchronise their norms agree on population statistics."""
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]
        norms = [m for m in model.modules() if isinstance(m, PopulationNorm) and not m.sync]
        mean_over_processes([stat for norm in norms for stat in norm.population.buffers()])
