"""fairseq's trainer for measurements: built from options, fed with batches, timed."""

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

__all__ = ["DEFAULTS", "make_trainer", "seconds", "train"]

DEFAULTS = (
    "--arch rbn_transformer_tiny --share-all-embeddings --optimizer adam --max-tokens 2000 "
    "--criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1"
)
_FIXED = "--task translation_rbn --no-tid --no-save --num-workers 0 --no-progress-bar".split()


def make_trainer(data: str, arguments: Sequence[str]) -> Any:
    """Return fairseq's trainer, with model and task, for options of fairseq-train.

    Nothing is measured on the way and nothing saved, unless the options say so.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    plugin = ("--user-dir", str(Path(__file__).resolve().parent.parent))
    given = [data, *plugin, *_FIXED, "--conditioning-interval", "0", *arguments]
    if not torch.cuda.is_available():
        given.append("--cpu")
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            parsed = options.parse_args_and_arch(options.get_training_parser(), given)
    except SystemExit:
        raise ValueError(refusal.getvalue().strip().rpartition(": error: ")[2]) from None
    cfg = convert_namespace_to_omegaconf(parsed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    _ = trainer.optimizer  # made when asked for, and perhaps refused
    return trainer


def train(trainer: Any, batches: Sequence[Any]) -> None:
    """Do an update on each batch."""
    for batch in batches:
        trainer.train_step([batch])


def seconds(action: Callable[[], Any]) -> float:
    """Return how long an action takes; on a GPU, until its work is done."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start
