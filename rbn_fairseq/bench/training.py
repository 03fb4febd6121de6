"""fairseq's trainer for measurements: built from options, fed with batches."""

import contextlib
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from rbn_fairseq.tasks.batches import collate, sample_batches

__all__ = [
    "DEFAULTS",
    "check_batches",
    "draw",
    "dtype_of",
    "make_trainer",
    "product_dtype",
    "read_setting",
    "set_up",
    "train",
    "training_dtype",
]

DEFAULTS = (
    "--arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam "
    "--lr 0.0005 --max-tokens 4096 --criterion label_smoothed_cross_entropy_rbn "
    "--label-smoothing 0.1"
)
_FIXED = "--task translation_rbn --no-tid --no-save --num-workers 0 --no-progress-bar".split()


def read_setting(text: str) -> tuple[str, list[str]]:
    """Read ``NAME: OPTIONS`` of fairseq-train.

    Raises:
        ValueError: if it has no name, or a quotation does not end.
    """
    name, colon, arguments = text.partition(":")
    try:
        given = shlex.split(arguments)
    except ValueError:  # a quotation that does not end
        colon = ""
    if not (colon and name.strip()):
        raise ValueError(
            "--setting must be `NAME: OPTIONS`, such as `bn: --norm-encoder batch`, but is "
            f"`{text}`."
        )
    return name.strip(), given


def set_up(data: str, arguments: Sequence[str], device: str) -> tuple[Any, Any]:
    """Return config and task for options of fairseq-train.

    Nothing is measured on the way and nothing saved, unless the options say so.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    plugin = ("--user-dir", str(Path(__file__).resolve().parent.parent))
    given = [data, *plugin, *_FIXED, "--conditioning-interval", "0", *arguments]
    if device == "cpu":
        given.append("--cpu")
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            parsed = options.parse_args_and_arch(options.get_training_parser(), given)
    except SystemExit:
        raise ValueError(refusal.getvalue().strip().rpartition(": error: ")[2]) from None
    cfg = convert_namespace_to_omegaconf(parsed)
    utils.set_torch_seed(cfg.common.seed)
    return cfg, tasks.setup_task(cfg.task)


def make_trainer(data: str, arguments: Sequence[str], device: str) -> Any:
    """Return fairseq's trainer, with model and task, for options of fairseq-train.

    Raises:
        ValueError: if fairseq-train does not take the options, or they cannot be timed.
    """
    cfg, task = set_up(data, arguments, device)
    if list(cfg.optimization.update_freq) != [1]:
        raise ValueError("--update-freq must be 1: an update is timed on one batch.")
    if getattr(cfg.criterion, "rbn_target_tid", None) is not None:
        raise ValueError(
            "--rbn-target-tid penalises nothing in a training's first updates, which are timed. "
            "Give --rbn-mean-weight and --rbn-std-weight, whose penalty takes as long."
        )
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    _ = trainer.optimizer  # made when asked for, and perhaps refused
    trainer.get_train_iterator(epoch=1)  # as in training; bins of lengths are cut here
    return trainer


def check_batches(configs: Mapping[str, Any]) -> None:
    """Refuse settings, by name, that would not have the same batches in the same precision.

    Raises:
        ValueError: if they differ in such options.
    """

    def shared(cfg: Any) -> tuple[Any, ...]:
        task = cfg.task
        return cfg.dataset, cfg.common.seed, task.data, task.length_mixing, training_dtype(cfg)

    first, *_ = configs.values()
    for name, cfg in configs.items():
        if shared(cfg) != shared(first):
            raise ValueError(
                f"`{name}`: options that make the batches (--max-tokens, --batch-size, --seed, "
                "--length-mixing and the like) or choose the precision (--fp16 and the like) must "
                "be the same for all settings. Give them behind `--`."
            )


def dtype_of(cfg: Any) -> str:
    """Return the dtype that fairseq's options give a model."""
    if cfg.common.fp16:
        return "float16"
    return "bfloat16" if cfg.common.bf16 else "float32"


def product_dtype(cfg: Any) -> str:
    """Return the dtype of training's matrix products: float16 where --amp casts, on GPUs."""
    return "float16" if cfg.common.amp and not cfg.common.cpu else dtype_of(cfg)


def training_dtype(cfg: Any) -> str:
    """Return the dtype of training in words: the model's, and that of products if it differs."""
    return " and ".join(dict.fromkeys((dtype_of(cfg), product_dtype(cfg))))


def draw(trainer: Any, number: int) -> list[Any]:
    """Return training batches, drawn uniformly from an epoch."""
    iterator = trainer.get_train_iterator(epoch=1)
    dataset = trainer.task.dataset(trainer.cfg.dataset.train_subset)
    drawn = sample_batches(iterator, number, trainer.cfg.common.seed)
    return list(collate(dataset, drawn, trainer.model))


def train(trainer: Any, batches: Sequence[Any]) -> None:
    """Do an update on each batch."""
    for batch in batches:
        trainer.train_step([batch])
