"""What is checked when a training starts."""

import logging
import math
import sys
from dataclasses import dataclass
from typing import Any, Optional

from fairseq import checkpoint_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import progress_bar
from omegaconf import II
from torch import nn

from rbn_fairseq.criterions.penalty import RBNPenalty
from rbn_fairseq.models.refusals import OF_CRITERION, OF_TRAINING, refuse
from rbn_fairseq.models.transformer import RBNTransformerModel
from rbn_fairseq.norms import LengthBatchNorm, PopulationNorm, has_population_norm
from rbn_fairseq.norms.moments import process_rank, world_size
from rbn_fairseq.tasks.data import check_data
from rbn_fairseq.tasks.start import describe_norms, describe_penalty, mean_size

__all__ = ["CheckedTask", "TrainingConfig"]

logger = logging.getLogger(__name__)


@dataclass
class TrainingConfig(FairseqDataclass):
    """What the task knows of the training around it; without a help text no options."""

    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    max_epoch: int = II("optimization.max_epoch")
    max_update: int = II("optimization.max_update")
    update_freq: list[int] = II("optimization.update_freq")
    lr: list[float] = II("optimization.lr")
    reset_optimizer: bool = II("checkpoint.reset_optimizer")
    # What norms may not go with.
    ddp_backend: str = II("distributed_training.ddp_backend")
    broadcast_buffers: bool = II("distributed_training.broadcast_buffers")
    pipeline_model_parallel: bool = II("distributed_training.pipeline_model_parallel")
    model_parallel_size: int = II("common.model_parallel_size")
    quantization_config_path: Optional[str] = II("common.quantization_config_path")
    use_bmuf: bool = II("optimization.use_bmuf")
    fp16: bool = II("common.fp16")
    amp: bool = II("common.amp")
    tpu: bool = II("common.tpu")


class CheckedTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    - A run is free of what an earlier one in the same process left behind.
    - The criterion's penalty and the model are checked against each other at the start.
    - What norms with running statistics do not go with is refused.
    - A line tells which norms sit where, and what the penalty's weights come to per token.
    - A warning tells of norms whose schedule ends after the training.
    """

    _model: Optional[nn.Module] = None
    _criterion: Any = None
    _started = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Set the task up, free of what an earlier run in this process left behind.

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
        languages = (getattr(cfg, f"{side}_lang", None) for side in ("source", "target"))
        check_data(cfg.data, languages)
        return super().setup_task(cfg, **kwargs)  # type: ignore[misc]

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model.

        Raises:
            ValueError: if its norms do not go with a mode of the training, or it would not learn.
        """
        if not from_checkpoint:
            self._check_learning_rate()
        model: nn.Module = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        if not from_checkpoint:
            refuse(OF_TRAINING, self.cfg, model)  # type: ignore[attr-defined]
            self._model = model
        return model

    def _check_learning_rate(self) -> None:
        for value in self.cfg.lr:  # type: ignore[attr-defined]
            if not 0 < value < math.inf:
                raise ValueError(
                    f"--lr must be positive, but is {value}: nothing would be learnt. Give the "
                    "peak learning rate, such as 0.0005."
                )

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        """Load a part of the data.

        Raises:
            ValueError: if it is to be trained on and has no targets; fairseq takes it for text to
                translate.
        """
        super().load_dataset(split, *args, **kwargs)  # type: ignore[misc]
        subset = self.cfg.train_subset  # type: ignore[attr-defined]
        dataset = self.datasets[split]  # type: ignore[attr-defined]
        if split == subset and getattr(dataset, "tgt_sizes", ()) is None:
            raise ValueError(
                f"The data's part `{split}` has one side alone, so that there is nothing to train "
                "on: `rbn doctor --data DATA-BIN` tells which. Make it with fairseq-preprocess."
            )

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; check that it can read the model's rows, and its penalty can act.

        Not for a model from a checkpoint: it is validated, and may have been folded.

        Raises:
            ValueError: if it cannot.
        """
        if isinstance(self._model, RBNTransformerModel):
            refuse(OF_CRITERION, cfg, self._model)
        criterion = super().build_criterion(cfg, from_checkpoint)  # type: ignore[misc]
        if isinstance(criterion, RBNPenalty) and self._model is not None:
            criterion.check_model(self._model)
        self._criterion = criterion
        return criterion

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Tell, at the start, of the norms, the penalty, and schedules that are too long."""
        super().begin_epoch(epoch, model)  # type: ignore[misc]
        if not self._started and process_rank() == 0:
            self._describe(model)
            self._check_schedules(model)
        self._started = True

    def _describe(self, model: nn.Module) -> None:
        norms, criterion = getattr(getattr(model, "cfg", None), "norms", None), self._criterion
        if norms is None:  # a model of fairseq's
            return
        pre = model.cfg.encoder.normalize_before, model.cfg.decoder.normalize_before
        kinds = [part for part in model.modules() if isinstance(part, LengthBatchNorm)]
        bins = kinds[0].options.length_bins if kinds else 1
        line = describe_norms(norms, pre, has_population_norm(model), bins)
        dataset = self.datasets[self.cfg.train_subset]  # type: ignore[attr-defined]
        iterator = self.dataset_to_epoch_iter.get(dataset)  # type: ignore[attr-defined]
        if isinstance(criterion, RBNPenalty) and criterion.rbn.penalises and iterator is not None:
            by_sentence = bool(getattr(criterion, "sentence_avg", False))
            size = mean_size(iterator, dataset, by_sentence)
            unit = "sentence" if by_sentence else "token"
            line += " | " + describe_penalty(criterion.rbn, size, unit, world_size(norms.sync))
        logger.info("norms: %s", line)
        if bins > 1 and world_size(norms.sync) > 1:
            logger.warning(
                "--norm-sync puts batches of unlike lengths together, and their statistics are not "
                "those of each length, by which --norm-batch-length-bins %d infers. Leave one of "
                "them out.",
                bins,
            )

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
