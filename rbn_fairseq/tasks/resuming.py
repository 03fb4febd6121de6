"""A training that was interrupted goes on as if it had not been."""

import logging
import sys
import zipfile
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from torch import nn

from rbn_fairseq.checkpoints.files import read_checkpoint, refuse_folded
from rbn_fairseq.checkpoints.mending import mend
from rbn_fairseq.checkpoints.saves import LAST
from rbn_fairseq.files import flush
from rbn_fairseq.models.loading import refuse_lost_length_bins
from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.tasks.data import fingerprint

__all__ = ["ResumableTask"]

logger = logging.getLogger(__name__)


def _patience() -> dict[str, Any]:
    """Return where --patience stands: fairseq keeps it in attributes of a function."""
    train = sys.modules.get("fairseq_cli.train")
    return vars(train.should_stop_early) if train else {}


def _check_restored(path: Path, save_dir: Path) -> None:
    """Refuse a file of --restore-file that is missing; fairseq would train from scratch.

    Raises:
        ValueError: naming it, unless it is in the save directory: a command that is given again
            after an interruption may name what the training will have saved by then.
    """
    if path.exists() or "://" in str(path):
        return
    if not path.resolve().is_relative_to(save_dir.resolve()):
        raise ValueError(f"--restore-file: there is no file `{path}`. Name one, or leave it out.")
    logger.warning("--restore-file %s is not there yet: training begins anew", path)


class ResumableTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - A resumed run sees the same batches as an uninterrupted one.
    - Where a save was cut off, it is completed, or training resumes from the one before.
    - A checkpoint that was saved outlasts a power cut.
    - A checkpoint is refused where the dictionaries are not those that it was trained with.
    - A checkpoint that `rbn fold` wrote is refused as a start.
    - Validation and generation read every sentence (fairseq drops up to 7).
    """

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
            ValueError: if training should resume from a missing or damaged checkpoint and there
                is no other, start from a folded one, or lose the optimizer's state or the bins of
                lengths of the one it starts from.
        """
        if not from_checkpoint and process_rank() == 0:  # which writes, checks and measures
            self._check_start(cfg)
        model: nn.Module = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        return model

    def _check_start(self, model_cfg: Any) -> None:
        cfg = self.cfg  # type: ignore[attr-defined]
        start = last = Path(cfg.save_dir) / LAST
        resumes = True
        # As in fairseq's checkpoint_utils.load_checkpoint.
        if cfg.restore_file != LAST:
            start = Path(cfg.restore_file)
            _check_restored(start, last.parent)
        else:
            mend(last.parent)
            other = cfg.continue_once or cfg.finetune_from_model
            if other and not last.exists():
                start, resumes = Path(other), bool(cfg.continue_once)
        if zipfile.is_zipfile(start):  # or there is none, or it is older than torch 1.6
            state = read_checkpoint(start, mmap=True)
            refuse_folded(start, state, "Train from the checkpoint that was folded.")
            refuse_lost_length_bins(start, state["model"], model_cfg)
            if resumes and not state.get("last_optimizer_state") and not cfg.reset_optimizer:
                raise ValueError(
                    f"`{start}` has no state of the optimizer, as an average has none: training "
                    "would go on from its epoch with a new optimizer and the learning rate of the "
                    "first update. Give --reset-optimizer if it should, or start a new training "
                    "from its weights: --finetune-from-model, or --init-from, and another "
                    "--save-dir."
                )
            if start == last:  # fairseq saves the task's state, but does not restore it
                self.load_state_dict(state.get("task_state") or {})

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps for every process: where --patience stands."""
        return {type(self).__name__: {"patience": dict(_patience())}}

    def set_checkpoint_dict(self, state: dict[str, Any]) -> None:
        """Read it; fairseq alone would wait for a better score as if from the start."""
        _patience().update(state["patience"])

    def post_save(self, *_: Any) -> None:
        """Wait until the checkpoints are on the disk; fairseq calls it after every save."""
        directory = Path(self.cfg.save_dir)  # type: ignore[attr-defined]
        for path in directory.glob("checkpoint*.pt"):
            if path.is_file():
                flush(path)
        flush(directory)

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
