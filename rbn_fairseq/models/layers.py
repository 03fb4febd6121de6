"""Encoder and decoder layers on rows of real tokens.

fairseq's own compute padding, and call norms and attention without a layout. These layers own the
forward for that one difference and otherwise follow, step by step, the methods of fairseq 0.12.3
named in their comments.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from rbn_fairseq.models.attention import Attention, PackedAttention
from rbn_fairseq.norms import BatchLayout, NoNorm
from rbn_fairseq.norms.scope import repetition

__all__ = ["RBNTransformerDecoderLayer", "RBNTransformerEncoderLayer", "recomputable"]


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
        again = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), repetition())}
        with save_on_cpu() if layer.offload else nullcontext():
            return checkpoint(forward, layer, *args, **again, **kwargs)

    return run


class _Sublayers:
    """The sublayers that encoder and decoder share, each with its norm, Post- or Pre-Norm.

    Sub-LN fills ``self_attn_out``, ``encoder_attn_out`` and ``fc2_norm``, Peri-LN the first two and
    ``ffn_out``; elsewhere they do nothing. DeepNorm counts residuals ``residual_scale`` times. In
    HybridNorm the feed-forward network's residual is the norm's output: ``adds_normalised``.
    """

    residual_scale = 1.0
    adds_normalised = False

    def _prepare(self, cfg: TransformerConfig, *places_of_norms: str) -> None:
        self.recompute, self.offload = cfg.checkpoint_activations, cfg.offload_activations
        for place in places_of_norms:
            setattr(self, place, NoNorm())

    def _before(self: Any, norm: nn.Module, x: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        return norm(x, layout) if self.normalize_before else x

    def _after(
        self: Any, norm: nn.Module, x: Tensor, residual: Tensor, layout: Optional[BatchLayout]
    ) -> Tensor:
        scale = self.residual_scale
        x = (residual if scale == 1 else scale * residual) + self.dropout_module(x)
        return x if self.normalize_before else norm(x, layout)

    def _attend_within(
        self: Any, x: Tensor, attention: Attention, layout: Optional[BatchLayout]
    ) -> Tensor:
        """Return the self-attention's output, of the shape of ``x``."""
        norm = self.self_attn_layer_norm
        y = attention.within(self.self_attn, self._before(norm, x, layout))
        return self._after(norm, self.self_attn_out(y, layout), x, layout)

    def _feed_forward(self: Any, x: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        """Return the feed-forward network's output, of the shape of ``x``."""
        norm = self.final_layer_norm
        normalised = self._before(norm, x, layout)
        y = self.activation_fn(self.fc1(normalised))
        y = self.fc2(self.fc2_norm(self.activation_dropout_module(y), layout))
        residual = normalised if self.adds_normalised else x
        return self._after(norm, self.ffn_out(y, layout), residual, layout)


class RBNTransformerEncoderLayer(_Sublayers, TransformerEncoderLayerBase):
    """Post- or Pre-Norm encoder layer: self-attention and feed-forward."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self._prepare(cfg, "self_attn_out", "fc2_norm", "ffn_out")

    @recomputable
    def forward(self, x: Tensor, attention: PackedAttention, layout: BatchLayout) -> Tensor:
        """Encode rows ``x: (N, C)`` of a batch's real tokens, to ``(N, C)``."""
        # Follows TransformerEncoderLayerBase.forward.
        return self._feed_forward(self._attend_within(x, attention, layout), layout)


class RBNTransformerDecoderLayer(_Sublayers, TransformerDecoderLayerBase):
    """Post- or Pre-Norm decoder layer: self-attention, cross-attention, feed-forward."""

    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self._prepare(cfg, "self_attn_out", "encoder_attn_out", "fc2_norm", "ffn_out")

    @recomputable
    def forward(
        self,
        x: Tensor,
        attention: Attention,
        layout: Optional[BatchLayout] = None,
        need_attn: bool = False,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Decode.

        Args:
            x: rows ``(N, C)`` of real tokens; in a step of generation ``(1, B, C)``.
            attention: of the batch, or of the step.
            layout: where sentences lie in the rows; ``None`` in generation.
            need_attn: return the cross-attention's weights.

        Returns:
            Of the shape of ``x``; and the weights as ``attention`` gives them, or ``None``.
        """
        # Follows TransformerDecoderLayerBase.forward, less its ONNX and cross+self-attention
        # branches.
        x = self._attend_within(x, attention, layout)
        weights: Optional[Tensor] = None
        if self.encoder_attn is not None and attention.memory is not None:
            norm = self.encoder_attn_layer_norm
            y = self._before(norm, x, layout)
            y, weights = attention.across(self.encoder_attn, y, need_attn)
            x = self._after(norm, self.encoder_attn_out(y, layout), x, layout)
        return self._feed_forward(x, layout), weights
