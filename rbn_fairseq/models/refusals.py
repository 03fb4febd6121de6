"""Table of the options that do not go with a model's norms, refused before a training starts."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from rbn_fairseq.norms import (
    Affine,
    MovingAverageBatchNorm,
    Norm,
    PopulationNorm,
    PowerNorm,
    populations_by_length,
)

__all__ = ["OF_CRITERION", "OF_MODEL", "OF_TRAINING", "Refusal", "refuse"]


class Refusal(NamedTuple):
    """An option that is refused.

    Attributes:
        option: as the user gives it; or `Training`, of any kind.
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
    parts = (part for side in model.kind.sides for part in getattr(model, side).layers.modules())
    norms = (part for part in parts if isinstance(part, PopulationNorm))
    return next((f"`{norm.name}`" for norm in norms if not norm.repeatable), "")


def _adaptive(model: Any) -> bool:
    return getattr(getattr(model, "decoder", None), "adaptive_softmax", None) is not None


def _in_parts(model: Any) -> str:
    if _adaptive(model):
        return "--adaptive-softmax-cutoff"
    embeddings = [getattr(model, side).embed_tokens for side in model.kind.sides]
    whole = all(isinstance(embedding, nn.Embedding) for embedding in embeddings)
    return "" if whole else "--adaptive-input"


def _backend(name: str) -> Callable[[Any], bool]:
    return lambda cfg: cfg.distributed_training.ddp_backend == name


_APART = (
    "a process would hold a part of the weights, or train them apart, and running statistics "
    "belong to whole weights. Use --ddp-backend legacy_ddp or pytorch_ddp."
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
        "the backward computes activations again, when this norm would give others: its running "
        "statistics have moved, or its schedule is not followed. Leave it out, or use another norm "
        "in the layers, such as `batch`.",
    ),
    Refusal(
        "--norm-unit-embeddings",
        lambda cfg: cfg.norms.unit_embeddings,
        _in_parts,
        "there types are vectors of several matrices. Leave one of them out.",
    ),
    Refusal(
        "--norm-sync",
        lambda cfg: cfg.norms.sync and (cfg.encoder.layerdrop or cfg.decoder.layerdrop),
        lambda model: "--encoder-layerdrop or --decoder-layerdrop",
        "processes that drop different layers would wait for each other for ever. Leave one of "
        "them out.",
    ),
)

#: By fairseq's whole configuration.
OF_TRAINING = (
    Refusal("--ddp-backend fully_sharded", _backend("fully_sharded"), _running, _APART),
    Refusal("--ddp-backend slowmo", _backend("slowmo"), _running, _APART),
    Refusal("--use-bmuf", lambda cfg: cfg.optimization.use_bmuf, _running, _APART),
    Refusal(
        "--broadcast-buffers",
        lambda cfg: cfg.distributed_training.broadcast_buffers,
        _running,
        "the first process's running statistics would replace the others', whose mean the task "
        "takes. Leave it out.",
    ),
    Refusal(
        "--length-mixing",
        lambda cfg: getattr(cfg.task, "length_mixing", "1") != "1",
        lambda model: "--norm-batch-length-bins" if populations_by_length(model) else "",
        "its batches of all lengths are normalised together, and inference would normalise each "
        "length by itself. Leave one of them out.",
    ),
    Refusal(
        "Training",
        lambda cfg: True,
        _first(Affine),
        "it is what `rbn fold` leaves of a norm, and its scale and shift do not train. Give `none` "
        "for no norm, or go on from the checkpoint as it was before `rbn fold`.",
    ),
    Refusal("--fp16", lambda cfg: cfg.common.fp16, _remembering, _SCALED),
    Refusal("--amp", lambda cfg: cfg.common.amp, _remembering, _SCALED),
)


_OF_ROWS = "the rows of real tokens that the model computes in training"
_PADDED = "it reads padded batches. Use --criterion label_smoothed_cross_entropy_rbn instead."


def _named(name: str) -> Callable[[Any], bool]:
    return lambda cfg: getattr(cfg, "_name", None) == name


#: By kind of model: the one criterion for its output, which is no model's of words.
_CRITERIONS = {
    "rbn_transformer_classifier": "classification_rbn",
    "rbn_transformer_tagger": "crf_rbn",
}


def _for_one_kind(kind: str, criterion: str) -> Iterator[Refusal]:
    yield Refusal(
        f"Another criterion than {criterion}",
        lambda cfg: not _named(criterion)(cfg),
        lambda model: kind if model.kind.name == kind else "",
        f"it reads probabilities of words. Give --criterion {criterion}.",
    )
    yield Refusal(
        f"--criterion {criterion}",
        _named(criterion),
        lambda model: "" if model.kind.name == kind else model.kind.name,
        f"it is for {kind}. Give --criterion label_smoothed_cross_entropy_rbn or "
        "cross_entropy_rbn, or an --arch of that model.",
    )


#: By the criterion's configuration: what does not read a model's output, or reads the padded shape
#: of a batch in training.
OF_CRITERION = (
    *(refusal for pair in _CRITERIONS.items() for refusal in _for_one_kind(*pair)),
    *(
        Refusal(f"--criterion {name}", _named(name), lambda model: _OF_ROWS, _PADDED)
        for name in (
            "label_smoothed_cross_entropy_with_rdrop",
            "label_smoothed_cross_entropy_with_alignment",
        )
    ),
    Refusal(
        "Another criterion than adaptive_loss_rbn",
        lambda cfg: not _named("adaptive_loss_rbn")(cfg),
        lambda model: "--adaptive-softmax-cutoff" if _adaptive(model) else "",
        f"it reads padded batches, not {_OF_ROWS}. Give --criterion adaptive_loss_rbn.",
    ),
    Refusal(
        "--criterion adaptive_loss_rbn",
        _named("adaptive_loss_rbn"),
        lambda model: "" if _adaptive(model) else "a model with an ordinary softmax",
        "give --adaptive-softmax-cutoff as well, such as 20000,60000, or another criterion.",
    ),
    Refusal(
        "--criterion label_smoothed_cross_entropy with --ignore-prefix-size",
        lambda cfg: _named("label_smoothed_cross_entropy")(cfg) and cfg.ignore_prefix_size > 0,
        lambda model: _OF_ROWS,
        "it cuts columns off padded batches. Use --criterion label_smoothed_cross_entropy_rbn, "
        "which takes --ignore-prefix-size.",
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
