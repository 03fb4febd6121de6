"""Checks at the start of a training, and the lines of the log that describe it."""

import dataclasses
import logging
import os
from typing import Any

from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.checkpoints.hold import hold
from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig
from rbn_fairseq.measuring.run_file import (
    changed_settings,
    describe_run,
    describe_start,
    write_run_file,
)
from rbn_fairseq.models.rbn_model import RBNModel
from rbn_fairseq.models.refusals import OF_CRITERION, OF_TRAINING, refuse
from rbn_fairseq.norms import Norm, has_population_norm, populations_by_length
from rbn_fairseq.norms.moments import process_rank, world_size

__all__ = ["Start", "describe_penalty"]

logger = logging.getLogger(__name__)

_SCORES = ("bleu", "accuracy", "precision", "recall", "f1")  # of which more is better
LOSSES = ("loss", "nll_loss", "ppl")


class Start(Callback):
    """Checks a training before its first update, and describes it in the log.

    - What does not go together is refused.
    - A line says which norms sit where, and what the penalty's weights come to per token.
    - ``SAVE_DIR/run.json`` says what the training is; settings that differ from those of the
      training that is resumed, or is complete, are named by a warning.
    - Parameters of norms that the model has not are named by a warning.
    """

    _checked = False
    _described = False
    _recorded = False

    def check(self, model_cfg: Any) -> None:
        """Refuse processes of torchrun that would each train alone; srun's are warned of.

        Refused are validations on the training data, too, a directory in which another process
        trains, and metrics that choose no best checkpoint: BLEU that is not computed, and scores of
        which the lowest would be kept.
        """
        processes = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
        if processes > 1 == self.training.cfg.distributed_training.distributed_world_size:
            raise ValueError(
                f"torchrun started {processes} processes, and --distributed-world-size 1 lets each "
                f"train alone, all in one directory: give --distributed-world-size {processes}."
            )
        tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
        if tasks != "1" and self.training.cfg.distributed_training.distributed_world_size == 1:
            logger.warning(
                "srun started %s processes, and each trains alone: give each a --save-dir of its "
                "own, or to train together --distributed-world-size %s and a --distributed-port",
                tasks,
                tasks,
            )
        if process_rank() == 0 and self.training.save_dir.is_dir():  # fairseq makes it
            hold(self.training.save_dir)
        dataset, trained = self.training.cfg.dataset, self.training.train_subset
        if trained in dataset.valid_subset.split(",") and not dataset.disable_validation:
            raise ValueError(
                f"--valid-subset {dataset.valid_subset}: to validate on `{trained}` would take its "
                "iterator, and end the epoch. Copy that part under another name."
            )
        chosen = self.training.cfg.checkpoint
        metric = chosen.best_checkpoint_metric
        if metric == "bleu" and not getattr(self.training.cfg.task, "eval_bleu", False):
            raise ValueError(
                "--best-checkpoint-metric bleu: no validation computes it, but in a translation "
                "task with --eval-bleu. Add that, or leave it out."
            )
        if metric in _SCORES and not chosen.maximize_best_checkpoint_metric:
            raise ValueError(
                f"--best-checkpoint-metric {metric} would keep the checkpoint with the lowest "
                f"{metric}: add --maximize-best-checkpoint-metric."
            )
        if metric in LOSSES and chosen.maximize_best_checkpoint_metric:
            logger.warning(
                "--maximize-best-checkpoint-metric keeps the checkpoint with the highest %s, and "
                "--patience waits for a higher one",
                metric,
            )

    def on_model(self, model: nn.Module) -> None:
        """Refuse what does not go with the model.

        Raises:
            ValueError: for modes of training that its norms do not go with, or a criterion that
                cannot read its rows of real tokens.
        """
        refuse(OF_TRAINING, self.training.cfg, model)
        if isinstance(model, RBNModel):
            refuse(OF_CRITERION, self.training.cfg.criterion, model)
            if process_rank() == 0:
                _warn_of_unused(model)

    def on_criterion(self, criterion: Any) -> None:
        """Check that the penalty can act on the model; a checkpoint's may have been folded."""
        if self.training.model is not None and isinstance(criterion, RBNPenalty):
            criterion.check_model(self.training.model)

    def on_batches(self, iterator: Any) -> None:
        """Refuse data without targets."""
        if self.training.model is None:  # nothing is trained, as in `rbn generate`
            return
        self.training.adapter.check_targets(self.training.task.datasets)
        if not self._checked:
            self._checked = True
            if process_rank() == 0:
                self._warn_of_other_settings(self.training.model)

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Describe the training, once."""
        if not self._described and process_rank() == 0:
            self._describe(model)
        self._described = True

    def on_attempt(self, model: nn.Module) -> None:
        """Write ``run.json`` before the first update of this process, which knows its number."""
        if not self._recorded and process_rank() == 0 and self.training.model is not None:
            training, trained = self.training, self.training.model
            processes = training.cfg.distributed_training.distributed_world_size
            start = describe_start(trained, training.updates, processes)
            run = describe_run(training.cfg, training.task, trained)
            write_run_file(training.save_dir, run, start, self.training.resumes)
        self._recorded = True

    def _warn_of_other_settings(self, model: nn.Module) -> None:
        training = self.training
        if self.training.resumes and not training.cfg.checkpoint.reset_optimizer:
            run = describe_run(training.cfg, training.task, model)
            if changed := changed_settings(training.save_dir, run):
                logger.warning(
                    "the training in %s, which goes on, had other settings: %s",
                    training.save_dir,
                    ", ".join(changed),
                )

    def _describe(self, model: Any) -> None:
        norms = getattr(getattr(model, "cfg", None), "norms", None)
        if norms is None:  # a model of fairseq's
            return
        sides = (
            f"{side} {stack.layers}"
            + ("" if getattr(model, side).layer_norm is None else f", final {stack.final}")
            for side, stack in norms.stacks.items()
        )
        parts = ["; ".join(sides)]
        if norms.placement != "standard":
            parts[0] += f" ({norms.placement})"
        replicas = world_size(norms.sync)  # processes that share their statistics
        if has_population_norm(model):
            own, joint = "each process's own batch", f"the joint batch (processes: {replicas})"
            parts.append(f"statistics of {joint if norms.sync else own}")
        populations = populations_by_length(model)
        if populations:
            parts.append(f"running statistics by sentence length ({populations[0].bins} bins)")
            if replicas > 1:
                logger.warning(
                    "--norm-sync puts batches of unlike lengths together, and their statistics are "
                    "not those of each length, by which --norm-batch-length-bins infers. Leave one "
                    "of them out."
                )
        criterion = self.training.criterion
        if isinstance(criterion, RBNPenalty) and criterion.rbn.penalises:
            parts.append(describe_penalty(criterion.rbn, *self._sample_size(), replicas))
        logger.info("norms: %s", " | ".join(parts))

    def _sample_size(self) -> tuple[float, str]:
        """Return the mean sample size of a micro-batch, and what it counts."""
        iterator = self.training.batches
        batches = iterator.frozen_batches
        lengths = self.training.adapter.target_lengths(iterator.dataset)
        if lengths is None or getattr(self.training.criterion, "sentence_avg", False):
            return sum(map(len, batches)) / len(batches), "sentence"
        return float(sum(lengths[batch].sum() for batch in batches)) / len(batches), "token"


def _warn_of_unused(model: RBNModel) -> None:
    """Name the options that are given for norms which the model has not."""
    present = {part.name for part in model.modules() if isinstance(part, Norm)}
    unused = [
        options.flag(item.name)
        for name, options in model.cfg.norms.options.items()
        for item in dataclasses.fields(options)
        if name not in present and getattr(options, item.name) != item.default
    ]
    if model.cfg.norms.sync and not has_population_norm(model):
        unused.append("--norm-sync")
    if unused:
        logger.warning("without effect, as no norm of the model reads it: %s", ", ".join(unused))


def describe_penalty(rbn: RBNPenaltyConfig, size: float, unit: str, replicas: int) -> str:
    """Say what the penalty's weights come to per unit of the sample size.

    With ``sum`` each micro-batch adds ``weight * gap`` to a loss that is divided by the sample
    size of all, and with synchronised statistics one process of several its part of it.

    Args:
        rbn: the penalty.
        size: mean sample size of a micro-batch.
        unit: of the sample size, ``token`` or ``sentence``.
        replicas: number of processes that share their statistics.
    """
    warmup = rbn.rbn_warmup_updates
    growing = f", growing from 0 in the first {warmup:,} updates" if warmup else ""
    weights = rbn.rbn_mean_weight, rbn.rbn_std_weight
    by = size * replicas if rbn.rbn_reduction == "sum" else 1.0
    effective = " and ".join(f"{weight / by:.3g}" for weight in weights)
    given = "{:g} and {:g}".format(*weights)
    return (
        f"RBN penalty ({rbn.rbn_convention}, {rbn.rbn_reduction}): weights of mean and std "
        f"{given}, which is {effective} per {unit} (micro-batches of {size:,.0f} {unit}s){growing}"
    )
