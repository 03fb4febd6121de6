"""Checks at the start of a training, and the lines of the log that describe it."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from torch import nn

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.criterions.options import RBNPenaltyConfig, parse_target
from rbn_fairseq.criterions.penalty import RBNPenalty
from rbn_fairseq.measuring.run_file import describe_run, describe_start, write_run_file
from rbn_fairseq.models.config import NormConfig
from rbn_fairseq.models.refusals import OF_CRITERION, OF_TRAINING, refuse
from rbn_fairseq.models.transformer import RBNTransformerModel
from rbn_fairseq.norms import PopulationNorm, has_population_norm, populations_by_length
from rbn_fairseq.norms.moments import process_rank, world_size

__all__ = ["Start", "describe_norms", "describe_penalty"]

logger = logging.getLogger(__name__)


class Start(Callback):
    """Checks a training before its first update, and describes it in the log.

    - The criterion's penalty and the model are checked against each other.
    - What norms with running statistics do not go with is refused.
    - A line says which norms sit where, and what the penalty's weights come to per token.
    - ``SAVE_DIR/run.json`` says what the training is.
    - A warning names norms whose schedule ends after the training.
    """

    _described = False
    _recorded = False

    def check(self, model_cfg: Any) -> None:
        """Refuse a learning rate that teaches nothing.

        Raises:
            ValueError: for one that is not positive and finite.
        """
        for value in self.training.cfg.optimization.lr:
            if not 0 < value < math.inf:
                raise ValueError(
                    f"--lr must be positive, but is {value}: nothing would be learnt. Give the "
                    "peak learning rate, such as 0.0005."
                )

    def on_model(self, model: nn.Module) -> None:
        """Refuse modes of training that the model's norms do not go with.

        Raises:
            ValueError: naming the option.
        """
        refuse(OF_TRAINING, self.training.cfg, model)

    def check_criterion(self, criterion_cfg: Any) -> None:
        """Refuse a criterion that cannot read the model's rows of real tokens.

        Raises:
            ValueError: naming it.
        """
        if isinstance(self.training.model, RBNTransformerModel):
            refuse(OF_CRITERION, criterion_cfg, self.training.model)

    def on_criterion(self, criterion: Any) -> None:
        """Check that the penalty can act on the model.

        Not on a checkpoint's, which is validated, and may have been folded.

        Raises:
            ValueError: if it cannot.
        """
        if self.training.model is not None and isinstance(criterion, RBNPenalty):
            criterion.check_model(self.training.model)

    def on_batches(self, split: Optional[str], dataset: Any, iterator: Any) -> None:
        """Refuse training data without targets; fairseq takes it for text to translate.

        Raises:
            ValueError: naming the part of the data.
        """
        trains = split == self.training.train_subset
        if trains and not self.training.adapter.has_targets(dataset):
            raise ValueError(
                f"The data's part `{split}` has one side alone, so that there is nothing to train "
                "on: `rbn doctor --data DATA-BIN` tells which. Make it with fairseq-preprocess."
            )

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Describe the training, and warn of schedules that are too long, once."""
        if not self._described and process_rank() == 0:
            self._describe(model)
            self._check_schedules(model)
        self._described = True

    @contextmanager
    def step(self, sample: Any, model: nn.Module, update: int, dummy: bool) -> Iterator[None]:
        """Write ``run.json`` before the first update of this process, which knows its number."""
        if not self._recorded and process_rank() == 0 and self.training.model is not None:
            training, trained = self.training, self.training.model
            processes = training.cfg.distributed_training.distributed_world_size
            run = describe_run(training.cfg, training.task, trained)
            write_run_file(training.save_dir, run, describe_start(trained, update, processes))
        self._recorded = True
        yield

    def _describe(self, model: Any) -> None:
        norms = getattr(getattr(model, "cfg", None), "norms", None)
        if norms is None:  # a model of fairseq's
            return
        pre = model.cfg.encoder.normalize_before, model.cfg.decoder.normalize_before
        populations = populations_by_length(model)
        bins = populations[0].bins if populations else 1
        line = describe_norms(norms, pre, has_population_norm(model), bins)
        criterion, iterator = self.training.criterion, self.training.batches
        if isinstance(criterion, RBNPenalty) and criterion.rbn.penalises:
            lengths = self.training.adapter.target_lengths(iterator.dataset)
            if getattr(criterion, "sentence_avg", False):
                lengths = None
            batches, unit = iterator.frozen_batches, "sentence" if lengths is None else "token"
            sizes = [len(batch) if lengths is None else lengths[batch].sum() for batch in batches]
            size = float(sum(sizes)) / len(batches)
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
        cfg, updates = self.training.cfg.optimization, math.inf
        if cfg.max_epoch > 0:
            # With data in several parts, epochs differ: the length of this one stands for all.
            batches, frequency = len(self.training.batches), cfg.update_freq
            updates = sum(
                math.ceil(batches / frequency[min(epoch, len(frequency) - 1)])
                for epoch in range(cfg.max_epoch)
            )
        if cfg.max_update > 0:
            updates = min(updates, cfg.max_update)
        norms = [part for part in model.modules() if isinstance(part, PopulationNorm)]
        ends = {
            norm.options.flag(name): getattr(norm.options, name)
            for norm in norms
            for name in norm.schedule
        }
        for option, end in ends.items():
            if end > updates:
                logger.warning(
                    "%s %d is longer than this training, which has %d updates: the norm will not "
                    "leave its schedule. Set it lower.",
                    option,
                    end,
                    updates,
                )


def describe_norms(norms: NormConfig, pre: tuple[bool, bool], running: bool, bins: int) -> str:
    """Say which norms sit where, and whose batch their statistics are of.

    Args:
        norms: which norms go where.
        pre: whether encoder and decoder are Pre-Norm, and have a norm behind the last layer.
        running: whether any norm has running statistics.
        bins: of sentence lengths, for which some have them; 1 = for none.
    """
    sides = [
        f"{stack.side} {stack.layers}" + (f", final {stack.final}" if before else "")
        for stack, before in zip((norms.encoder, norms.decoder), pre, strict=True)
    ]
    placement = "" if norms.placement == "standard" else f" ({norms.placement})"
    whose = ""
    if running and norms.sync:
        whose = f" | statistics of the joint batch (processes: {world_size(sync=True)})"
    elif running:
        whose = " | statistics of each process's own batch"
    by_length = f" | running statistics by sentence length ({bins} bins)" if bins > 1 else ""
    return f"{'; '.join(sides)}{placement}{whose}{by_length}"


def describe_penalty(rbn: RBNPenaltyConfig, size: float, unit: str, replicas: int) -> str:
    """Say what the penalty's weights come to per unit of the sample size, or its targets.

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
    if rbn.rbn_target_tid is not None:
        targets = " and ".join(f"{100 * target:g} %" for target in parse_target(rbn.rbn_target_tid))
        return (
            f"RBN penalty: TID of mean and std at most {targets} in every batch norm, by "
            f"multipliers with step {rbn.rbn_target_step:g} and cap {rbn.rbn_target_cap:g}{growing}"
        )
    weights = rbn.rbn_mean_weight, rbn.rbn_std_weight
    by = size * replicas if rbn.rbn_reduction == "sum" else 1.0
    effective = " and ".join(f"{weight / by:.3g}" for weight in weights)
    given = "{:g} and {:g}".format(*weights)
    return (
        f"RBN penalty ({rbn.rbn_convention}, {rbn.rbn_reduction}): weights of mean and std "
        f"{given}, which is {effective} per {unit} (micro-batches of {size:,.0f} {unit}s){growing}"
    )
