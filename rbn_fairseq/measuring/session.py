"""A trained model with its task and training batches, from a checkpoint."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf

from rbn_fairseq.checkpoints.files import (
    NO_EMBEDDINGS,
    own_settings,
    read_checkpoint,
    refuse_folded,
    updates_of,
)
from rbn_fairseq.measuring.batches import mix, parse_mixing
from rbn_fairseq.measuring.data_bin import WAY_OUT
from rbn_fairseq.models.state_dicts import describe_plans
from rbn_fairseq.norms import has_population_norm

__all__ = ["Session", "open_session"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A trained model and its data, to measure it on.

    Attributes:
        model: the model, in evaluation mode.
        dataset: its training data.
        iterator: fairseq's iterator over them, with the batches that the model was trained on;
            mixed ones are those of its first epoch.
        update: number of updates so far.
        task: the task.
        cfg: fairseq's whole configuration of the training.
    """

    model: Any
    dataset: Any
    iterator: Any
    update: int
    task: Any
    cfg: Any

    @property
    def mixing(self) -> Optional[int]:
        """The training's --length-mixing, as ``parse_mixing`` reads it; 1 where a task has none."""
        return parse_mixing(getattr(self.task.training.options, "length_mixing", "1"))

    def validation(self) -> tuple[Any, Any]:
        """Return the validation data and an iterator over batches of them, made as in training.

        fairseq's own are sorted by length and cut at the training's --max-tokens and --batch-size,
        not at those of the validation; where a sentence is longer than --max-tokens, all at its
        length. After a training with --length-mixing they are mixed. Each sentence is in one. Of
        several validation sets it is the first, but for --combine-valid-subsets.
        """
        options = self.cfg.dataset
        subset = options.valid_subset.split(",")[0]
        self.task.load_dataset(subset, combine=bool(options.combine_valid_subsets), epoch=1)
        dataset = self.task.dataset(subset)
        self.task.adapter.check_targets({subset: dataset})
        longest = self.task.max_positions(), self.model.max_positions()
        invalid = options.skip_invalid_size_inputs_valid_test
        how = {"ignore_invalid_inputs": invalid}
        if options.max_tokens:
            sentences = dataset.ordered_indices()
            if invalid:
                most = utils.resolve_max_positions(*longest)
                sentences, _ = dataset.filter_indices_by_size(sentences, most)
            how["max_tokens"] = max(options.max_tokens, *map(dataset.num_tokens, sentences))
        iterator = _iterate(self.task, dataset, self.cfg, longest, **how)
        if self.mixing != 1 and iterator.frozen_batches:
            mix(iterator, self.mixing, self.task.adapter.tokens(dataset))
        return dataset, iterator


def _iterate(task: Any, dataset: Any, cfg: Any, longest: tuple[Any, ...], **how: Any) -> Any:
    """Return fairseq's iterator, with batches as large as the training's unless ``how`` says so."""
    how = {"max_tokens": cfg.dataset.max_tokens, **how}
    return task.get_batch_iterator(
        dataset=dataset,
        max_sentences=cfg.dataset.batch_size,
        max_positions=utils.resolve_max_positions(*longest),
        seed=cfg.common.seed,
        epoch=1,
        **how,
    )


def open_session(
    path: Path,
    data: Optional[Path] = None,
    device: str = "cpu",
    state: Optional[dict[str, Any]] = None,
) -> Session:
    """Load a checkpoint of a model with running statistics, and its training data.

    Of data in several parts (``DATA-BIN:DATA-BIN``) it is the first, which a warning tells, as one
    does where training took the statistics of several processes' batches together.

    ``data`` is a directory, ``None`` = the one that the checkpoint was trained on; ``state`` is the
    checkpoint's content, or what was made of it, ``None`` = read the file.

    Raises:
        ValueError: if the file cannot be used, was made without this plugin, is folded, has no norm
            with running statistics, or does not fit the data.
    """
    state = read_checkpoint(path) if state is None else state
    cfg = own_settings(path, state)
    refuse_folded(path, state, "Give the checkpoint that was folded.")
    name = cfg["task"]["_name"]
    adapter = getattr(TASK_REGISTRY.get(name), "adapter", None)
    if adapter is None:
        raise ValueError(
            f"`{path}` was trained with --task {name}, of which it is not known how to measure it: "
            "the task is not this plugin's, or --user-dir is missing."
        )
    settings = SimpleNamespace(**{**cfg["task"], "data": str(data or cfg["task"]["data"])})
    adapter.check_data(settings, WAY_OUT if data else "Say with --data where it is now.")
    # As fairseq's checkpoint_utils.load_checkpoint_to_cpu makes of a file.
    full = OmegaConf.create(cfg, flags={"allow_objects": True})
    overwrite_args_by_name(full, {"data": os.path.abspath(settings.data), **NO_EMBEDDINGS})
    (model,), full, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], state={**state, "args": None, "cfg": full}
    )
    if not has_population_norm(model):
        raise ValueError(
            f"The model of `{path}` has no norm with running statistics "
            f"({describe_plans(cfg['model'])}): there is nothing to measure or to estimate."
        )
    parts = utils.split_paths(full.task.data)
    if len(parts) > 1:
        logger.warning(
            "the data have %d parts, of which the first is taken: `%s`", len(parts), parts[0]
        )
    processes = full.distributed_training.distributed_world_size
    if processes > 1 and getattr(full.model, "norm_sync", False):
        logger.warning(
            "trained with --norm-sync on the batches of %d processes together; what is measured is "
            "of the batches of one, but by `rbn tid --tid-batching joint:%d`",
            processes,
            processes,
        )
    subset = full.dataset.train_subset
    task.load_dataset(subset, combine=True, epoch=1)
    adapter.check_targets({subset: task.dataset(subset)})
    longest = task.max_positions(), model.max_positions(), full.dataset.max_tokens
    multiple = full.dataset.required_batch_size_multiple
    how = {"ignore_invalid_inputs": True, "required_batch_size_multiple": multiple}
    iterator = _iterate(task, task.dataset(subset), full, longest, **how)
    model.eval().to(device)
    return Session(model, task.dataset(subset), iterator, updates_of(state), task, full)
