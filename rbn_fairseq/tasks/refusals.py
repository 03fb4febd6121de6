"""Modes of fairseq that norms with running statistics do not go with: refused at the start."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import nn

from rbn_fairseq.norms import MovingAverageBatchNorm, PopulationNorm, PowerNorm

__all__ = ["REFUSALS", "ModesConfig", "Refusal", "check_modes"]


@dataclass
class ModesConfig(FairseqDataclass):
    """fairseq's modes of training, under the names that they have in its sections."""

    ddp_backend: str = II("distributed_training.ddp_backend")
    pipeline_model_parallel: bool = II("distributed_training.pipeline_model_parallel")
    model_parallel_size: int = II("common.model_parallel_size")
    quantization_config_path: Optional[str] = II("common.quantization_config_path")
    use_bmuf: bool = II("optimization.use_bmuf")
    fp16: bool = II("common.fp16")
    amp: bool = II("common.amp")
    tpu: bool = II("common.tpu")


class Refusal(NamedTuple):
    """A mode that is refused.

    Attributes:
        option: as the user gives it.
        given: tells from the task's configuration and the model whether it is given.
        norms: the norms that it is refused for.
        reason: why, and the way out.
    """

    option: str
    given: Callable[[Any, Any], bool]
    norms: tuple[type[nn.Module], ...]
    reason: str


_RUNNING = (PopulationNorm,)
_GRADIENTS = (PowerNorm, MovingAverageBatchNorm)
_DIVERGING = (
    "processes train apart between its averagings, and each one's running statistics belong to "
    "weights that no checkpoint holds. Use --ddp-backend legacy_ddp or pytorch_ddp."
)
_SCALED = (
    "the norm's backward remembers gradients, and the loss scale that multiplies them changes. "
    "Use --bf16, or fp32."
)
_NOISE = (
    "in training the statistics are those of noisy weights, in inference those weights have no "
    "noise, so that the running statistics are another model's. Use `layer` norms."
)

#: What is refused, in the order in which it is checked.
REFUSALS = (
    Refusal(
        "--bf16",
        lambda task, _: task.tpu and find_spec("torch_xla") is None,
        (nn.Module,),
        "fairseq's command line takes it for --tpu, which needs torch_xla. On a GPU use "
        "fairseq-hydra-train with common.bf16=true, or --amp.",
    ),
    Refusal(
        "--ddp-backend fully_sharded",
        lambda task, _: task.ddp_backend == "fully_sharded",
        _RUNNING,
        "a process holds a part of the weights alone, and the task, which takes statistics back "
        "where an update is dropped, and measures TID, needs the whole model. Use --ddp-backend "
        "legacy_ddp or pytorch_ddp, with --memory-efficient-fp16 or --checkpoint-activations to "
        "save memory.",
    ),
    Refusal(
        "--ddp-backend slowmo",
        lambda task, _: task.ddp_backend == "slowmo",
        _RUNNING,
        _DIVERGING,
    ),
    Refusal("--use-bmuf", lambda task, _: task.use_bmuf, _RUNNING, _DIVERGING),
    Refusal(
        "--pipeline-model-parallel",
        lambda task, _: task.pipeline_model_parallel,
        _RUNNING,
        "it cuts the model and its batches into parts, and a norm would see a part of each "
        "batch. Use data parallelism.",
    ),
    Refusal(
        "--model-parallel-size",
        lambda task, _: task.model_parallel_size > 1,
        _RUNNING,
        "it takes models of its own, whose norms are no choice. Use data parallelism.",
    ),
    Refusal(
        "--quantization-config-path",
        lambda task, _: bool(task.quantization_config_path),
        _RUNNING,
        "it replaces weights during training, and the running statistics would be those of the "
        "weights from before. Use `layer` norms.",
    ),
    Refusal("--quant-noise-pq", lambda _, model: model.cfg.quant_noise.pq > 0, _RUNNING, _NOISE),
    Refusal(
        "--quant-noise-scalar",
        lambda _, model: model.cfg.quant_noise.scalar > 0,
        _RUNNING,
        _NOISE,
    ),
    Refusal("--fp16", lambda task, _: task.fp16, _GRADIENTS, _SCALED),
    Refusal("--amp", lambda task, _: task.amp, _GRADIENTS, _SCALED),
)


def check_modes(model: nn.Module, cfg: Any) -> None:
    """Refuse to train a model in a mode that its norms do not go with.

    Args:
        model: the model.
        cfg: the task's configuration, with the fields of :class:`ModesConfig`.

    Raises:
        ValueError: naming the option, the norm, the reason and the way out.
    """
    for refusal in REFUSALS:
        concerned = [part for part in model.modules() if isinstance(part, refusal.norms)]
        if concerned and refusal.given(cfg, model):
            norm = type(concerned[0]).__name__
            raise ValueError(f"{refusal.option} does not go with {norm}: {refusal.reason}")
