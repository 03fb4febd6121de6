"""Layers whose activations are computed again in the backward instead of being kept."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from rbn_fairseq.norms.scope import repetition

__all__ = ["recomputable"]


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), repetition()


def recomputable(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the forward of a layer: in training it keeps its inputs alone.

    Where the layer's ``recompute`` is true, the backward runs the forward again, with the same
    random numbers, to have its activations; norms then leave their running statistics alone and
    record no gap. What the first run recorded keeps its graph. Where ``offload`` is true as well,
    the inputs wait on the CPU.
    """

    @wraps(forward)
    def run(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not (layer.recompute and layer.training and torch.is_grad_enabled()):
            return forward(layer, *args, **kwargs)
        with save_on_cpu() if layer.offload else nullcontext():
            return checkpoint(
                forward, layer, *args, use_reentrant=False, context_fn=_contexts, **kwargs
            )

    return run
