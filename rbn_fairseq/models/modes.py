"""Options of the model that its norms do not go with."""

import logging
from typing import Any

from torch.nn.utils import parametrize

from rbn_fairseq.norms import MovingAverageBatchNorm, PopulationNorm, has_population_norm

__all__ = ["check_modes"]

logger = logging.getLogger(__name__)


def check_modes(model: Any) -> None:
    """Refuse what a model's norms cannot be combined with, and warn of what they leak.

    Args:
        model: an ``rbn_transformer``.

    Raises:
        ValueError: naming the option and the way out.
    """
    layers = (*model.encoder.layers.modules(), *model.decoder.layers.modules())
    norms = [part for part in layers if isinstance(part, PopulationNorm)]
    if model.cfg.checkpoint_activations and not all(norm.repeatable for norm in norms):
        raise ValueError(
            "--checkpoint-activations (or --offload-activations) computes activations again "
            "in the backward, when the running statistics by which `renorm`, `power` and "
            "`mabn` normalise in training have moved. Leave it out, or use another norm in "
            "the layers, such as `batch`."
        )
    if model.cfg.checkpoint_activations and model.cfg.quant_noise.pq > 0:
        raise ValueError(
            "--quant-noise-pq does not go with --checkpoint-activations (or "
            "--offload-activations): each forward writes its noise into the weights, also the "
            "one that computes activations again. Leave one of them out."
        )
    parametrised = [part for part in model.modules() if parametrize.is_parametrized(part)]
    if parametrised and model.cfg.quant_noise.pq > 0:
        raise ValueError(
            "--quant-noise-pq does not go with --norm-weight or `mabn`, whose weights are "
            "computed anew at every forward: its noise would not reach them. Leave one out."
        )
    for side, kept, depth in model.kept_layers():
        moving = (isinstance(m, MovingAverageBatchNorm) for m in getattr(model, side).modules())
        if len(kept) < depth and any(moving):
            raise ValueError(
                f"--{side}-layers-to-keep does not go with `mabn`: other layers would follow "
                "its norms than those whose weights it centres. Leave it out."
            )
    if model.cfg.norms.sync and (model.cfg.encoder.layerdrop or model.cfg.decoder.layerdrop):
        raise ValueError(
            "--norm-sync does not go with --encoder-layerdrop or --decoder-layerdrop: "
            "processes that drop different layers would wait for each other for ever. Leave "
            "one of them out."
        )
    if has_population_norm(model.decoder):
        logger.warning(
            "Norms with batch statistics in the decoder: in training, they let a position see "
            "later target tokens. Generation uses running statistics and leaks nothing."
        )
