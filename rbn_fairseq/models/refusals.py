"""Table of the options that do not go with a model's norms, refused before a training starts."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import nn
from torch.nn.utils import parametrize

from rbn_fairseq.norms import (
    Affine,
    MovingAverageBatchNorm,
    Norm,
    PopulationNorm,
    PowerNorm,
    populations_by_length,
)

__all__ = ["OF_CRITERION", "OF_MODEL", "OF_TRAINING", "Refusal", "refuse", "task_provides"]


class Refusal(NamedTuple):
    """An option that is refused.

    Attributes:
        option: as the user gives it.
        given: tells from a configuration whether it is given.
        clash: names what in a model it does not go with; empty if nothing.
        reason: why, and the way out.
    """

    option: str
    given: Callable[[Any], Any]
    clash: Callable[[nn.Module], str]
    reason: str


def _first(*kinds: type[Norm]) -> Callable[[nn.Module], str]:
    return lambda model: next(
        (f"`{part.name}`" for part in model.modules() if isinstance(part, kinds)), ""
    )


_running = _first(PopulationNorm)
_remembering = _first(PowerNorm, MovingAverageBatchNorm)


def _unrepeatable(model: Any) -> str:
    layers = (*model.encoder.layers.modules(), *model.decoder.layers.modules())
    norms = (part for part in layers if isinstance(part, PopulationNorm))
    return next((f"`{norm.name}`" for norm in norms if not norm.repeatable), "")


def _affine(model: nn.Module) -> str:
    affine = any(isinstance(part, Affine) for part in model.modules())
    return "`affine` in --norm-encoder or its sisters" if affine else ""


def _pruned_mabn(side: str) -> Callable[[Any], str]:
    moving = _first(MovingAverageBatchNorm)
    return lambda model: moving(getattr(model, side)) if side in model.pruned_sides() else ""


_AGAIN = (
    "activations are computed again in the backward, when the running statistics by which these "
    "norms normalise in training have moved. Leave it out, or use another norm in the layers, "
    "such as `batch`."
)
_NOISE = (
    "in training the statistics are those of noisy weights, in inference those weights have no "
    "noise, so that the running statistics are another model's. Use `layer` norms."
)
_PRUNED = (
    "other layers would follow its norms than those whose weights it centres. Leave the option out."
)
_WAITING = (
    "processes that drop different layers would wait for each other for ever. Leave one of them "
    "out."
)
_APART = (
    "processes train apart between its averagings, and each one's running statistics belong to "
    "weights that no checkpoint holds. Use --ddp-backend legacy_ddp or pytorch_ddp."
)
_SCALED = (
    "the norm's backward remembers gradients, and the loss scale that multiplies them changes. "
    "Use bf16, or fp32."
)

#: By the model's configuration (fairseq's ``TransformerConfig`` with ``norms``).
OF_MODEL = (
    Refusal(
        "--checkpoint-activations (or --offload-activations)",
        lambda cfg: cfg.checkpoint_activations,
        _unrepeatable,
        _AGAIN,
    ),
    Refusal(
        "--quant-noise-pq",
        lambda cfg: cfg.quant_noise.pq > 0 and cfg.checkpoint_activations,
        lambda model: "--checkpoint-activations (or --offload-activations)",
        "each forward writes its noise into the weights, also the one that computes activations "
        "again. Leave one of them out.",
    ),
    Refusal(
        "--quant-noise-pq",
        lambda cfg: cfg.quant_noise.pq > 0,
        lambda model: (
            "--norm-weight or `mabn`"
            if any(map(parametrize.is_parametrized, model.modules()))
            else ""
        ),
        "their weights are computed anew at every forward, and its noise would not reach them. "
        "Leave one out.",
    ),
    Refusal("--quant-noise-pq", lambda cfg: cfg.quant_noise.pq > 0, _running, _NOISE),
    Refusal("--quant-noise-scalar", lambda cfg: cfg.quant_noise.scalar > 0, _running, _NOISE),
    Refusal("--encoder-layers-to-keep", lambda cfg: True, _pruned_mabn("encoder"), _PRUNED),
    Refusal("--decoder-layers-to-keep", lambda cfg: True, _pruned_mabn("decoder"), _PRUNED),
    Refusal(
        "--norm-sync",
        lambda cfg: cfg.norms.sync and (cfg.encoder.layerdrop or cfg.decoder.layerdrop),
        lambda model: "--encoder-layerdrop or --decoder-layerdrop",
        _WAITING,
    ),
)

#: By fairseq's whole configuration.
OF_TRAINING = (
    Refusal(
        "--bf16",
        lambda cfg: cfg.common.tpu and find_spec("torch_xla") is None,
        lambda model: "an environment without torch_xla",
        "fairseq's command line takes it for --tpu. On a GPU use fairseq-hydra-train with "
        "common.bf16=true, or --amp.",
    ),
    Refusal(
        "--ddp-backend fully_sharded",
        lambda cfg: cfg.distributed_training.ddp_backend == "fully_sharded",
        _running,
        "a process holds a part of the weights alone, and the task, which takes statistics back "
        "where an update is dropped, and measures TID, needs the whole model. Use --ddp-backend "
        "legacy_ddp or pytorch_ddp, with --memory-efficient-fp16 or --checkpoint-activations to "
        "save memory.",
    ),
    Refusal(
        "--ddp-backend slowmo",
        lambda cfg: cfg.distributed_training.ddp_backend == "slowmo",
        _running,
        _APART,
    ),
    Refusal("--use-bmuf", lambda cfg: cfg.optimization.use_bmuf, _running, _APART),
    Refusal(
        "--broadcast-buffers",
        lambda cfg: cfg.distributed_training.broadcast_buffers,
        _running,
        "it puts the first process's running statistics in the place of the others', whose "
        "batches are lost; the task lets processes agree on the mean. Leave it out.",
    ),
    Refusal(
        "--pipeline-model-parallel",
        lambda cfg: cfg.distributed_training.pipeline_model_parallel,
        _running,
        "it cuts the model and its batches into parts, and a norm would see a part of each "
        "batch. Use data parallelism.",
    ),
    Refusal(
        "--model-parallel-size",
        lambda cfg: cfg.common.model_parallel_size > 1,
        _running,
        "it takes models of its own, whose norms are no choice. Use data parallelism.",
    ),
    Refusal(
        "--quantization-config-path",
        lambda cfg: cfg.common.quantization_config_path,
        _running,
        "it replaces weights during training, and the running statistics would be those of the "
        "weights from before. Use `layer` norms.",
    ),
    Refusal(
        "Training",
        lambda cfg: True,
        _affine,
        "it is what `rbn fold` leaves of a norm with running statistics, and does not learn. "
        "Train from the checkpoint that was folded, with its norms.",
    ),
    Refusal(
        "--length-mixing",
        lambda cfg: getattr(cfg.task, "length_mixing", "1") != "1",
        lambda model: "--norm-batch-length-bins" if populations_by_length(model) else "",
        "its batches have sentences of all lengths and are normalised together, so that "
        "inference by the statistics of each length would be another normalisation than "
        "training's. Leave one of them out.",
    ),
    Refusal("--fp16", lambda cfg: cfg.common.fp16, _remembering, _SCALED),
    Refusal("--amp", lambda cfg: cfg.common.amp, _remembering, _SCALED),
)

_OF_ROWS = "the rows of real tokens that rbn_transformer computes in training"


def _named(*names: str) -> Callable[[Any], Any]:
    return lambda cfg: getattr(cfg, "_name", None) in names


#: By the criterion's configuration: what reads the padded shape of a batch in training.
OF_CRITERION = (
    Refusal(
        "--criterion label_smoothed_cross_entropy_with_rdrop",
        _named("label_smoothed_cross_entropy_with_rdrop"),
        lambda model: _OF_ROWS,
        "it runs a batch twice as one and compares its halves. Use label_smoothed_cross_entropy or "
        "label_smoothed_cross_entropy_rbn.",
    ),
    Refusal(
        "--criterion label_smoothed_cross_entropy_with_alignment",
        _named("label_smoothed_cross_entropy_with_alignment"),
        lambda model: _OF_ROWS,
        "it reads attention by positions of the padded batch. Use label_smoothed_cross_entropy or "
        "label_smoothed_cross_entropy_rbn; --print-alignment works without.",
    ),
    Refusal(
        "--criterion adaptive_loss (--adaptive-softmax-cutoff)",
        _named("adaptive_loss"),
        lambda model: _OF_ROWS,
        "it counts sentences by the padded batch. Leave the adaptive softmax out; "
        "label_smoothed_cross_entropy_rbn holds no logits of a whole batch in fp32.",
    ),
    Refusal(
        "--adaptive-softmax-cutoff",
        lambda cfg: True,
        lambda model: _OF_ROWS if model.decoder.adaptive_softmax is not None else "",
        "it wants a padded batch. Leave it out; label_smoothed_cross_entropy_rbn holds no logits "
        "of a whole batch in fp32.",
    ),
    Refusal(
        "--criterion label_smoothed_cross_entropy with --ignore-prefix-size",
        lambda cfg: _named("label_smoothed_cross_entropy")(cfg) and cfg.ignore_prefix_size > 0,
        lambda model: _OF_ROWS,
        "it cuts the first columns off the padded batch. Use --criterion "
        "label_smoothed_cross_entropy_rbn, which takes --ignore-prefix-size.",
    ),
)


def refuse(refusals: Iterable[Refusal], cfg: Any, model: nn.Module) -> None:
    """Refuse the first option that is given and does not go with a model.

    Raises:
        ValueError: naming the option, what it clashes with, the reason and the way out.
    """
    for refusal in refusals:
        clash = refusal.clash(model) if refusal.given(cfg) else ""
        if clash:
            raise ValueError(f"{refusal.option} does not go with {clash}: {refusal.reason}")


def task_provides(task: Any, what: str) -> bool:
    """Tell whether a task's callbacks take care of something that a model or criterion needs.

    Args:
        task: fairseq's or one with callbacks.
        what: as its callbacks call it in ``Callback.provides``.
    """
    return bool(getattr(task, "provides", lambda what: False)(what))
