"""Encoder and decoder layers that tell their norms which tokens are real.

fairseq calls its norms without a mask. These layers own the forward for that one difference and
otherwise follow, step by step, the methods of fairseq 0.12.3 named in their comments.
"""

from typing import Any, Optional

from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor

from rbn_fairseq.models.deepnorm import ScaledResidual
from rbn_fairseq.models.recomputation import recomputable
from rbn_fairseq.norms import NoNorm, ValidTokens

__all__ = ["RBNTransformerDecoderLayer", "RBNTransformerEncoderLayer"]


class RBNTransformerEncoderLayer(ScaledResidual, TransformerEncoderLayerBase):
    """Post- or Pre-Norm encoder layer: self-attention and feed-forward, a norm for each.

    Sub-LN fills ``self_attn_out`` and ``fc2_norm``; elsewhere they do nothing.
    """

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.recompute, self.offload = cfg.checkpoint_activations, cfg.offload_activations
        self.self_attn_out = NoNorm()
        self.fc2_norm = NoNorm()

    @recomputable
    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Optional[Tensor],
        attn_mask: Optional[Tensor] = None,
        tokens: Optional[ValidTokens] = None,
    ) -> Any:
        """Encode.

        Args:
            x: ``(T, B, C)``.
            encoder_padding_mask: ``(B, T)``, True = padding, or ``None``.
            attn_mask: ``(T, T)``, True = not attended to.
            tokens: the real tokens of ``x``; ``None`` = all.

        Returns:
            ``(T, B, C)``; with ``return_fc`` also the feed-forward output before the residual.
        """
        # Follows TransformerEncoderLayerBase.forward.
        if attn_mask is not None:
            floor = -1e8 if x.dtype.itemsize >= 4 else -1e4
            attn_mask = attn_mask.masked_fill(attn_mask.bool(), floor)

        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x, tokens)
        x, _ = self.self_attn(
            query=x,
            key=x,
            value=x,
            key_padding_mask=encoder_padding_mask,
            need_weights=False,
            attn_mask=attn_mask,
        )
        x = self.self_attn_out(x, tokens)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x, tokens)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x, tokens)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        fc_result = x = self.fc2(self.fc2_norm(x, tokens))
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.final_layer_norm(x, tokens)
        return (x, fc_result) if self.return_fc else x


class RBNTransformerDecoderLayer(ScaledResidual, TransformerDecoderLayerBase):
    """Post- or Pre-Norm decoder layer: self-attention, cross-attention, feed-forward.

    Sub-LN fills ``self_attn_out``, ``encoder_attn_out`` and ``fc2_norm``; elsewhere they do
    nothing.
    """

    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.recompute, self.offload = cfg.checkpoint_activations, cfg.offload_activations
        self.self_attn_out = NoNorm()
        self.encoder_attn_out = NoNorm()
        self.fc2_norm = NoNorm()

    @recomputable
    def forward(
        self,
        x: Tensor,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[dict[str, dict[str, Optional[Tensor]]]] = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
        tokens: Optional[ValidTokens] = None,
    ) -> tuple[Tensor, Optional[Tensor], None]:
        """Decode.

        Args:
            x: ``(T, B, C)``.
            encoder_out: ``(S, B, C)``, or ``None`` without cross-attention.
            encoder_padding_mask: ``(B, S)``, True = padding, or ``None``.
            incremental_state: cache of keys and values during generation.
            self_attn_mask: ``(T, T)``, added to the attention's logits.
            self_attn_padding_mask: ``(B, T)``, True = padding, or ``None``.
            need_attn: return the cross-attention's weights.
            need_head_weights: return them for each head.
            tokens: the real tokens of ``x``; ``None`` = all.

        Returns:
            ``(T, B, C)``, the attention weights or ``None``, and ``None``.
        """
        # Follows TransformerDecoderLayerBase.forward, less its ONNX and cross+self-attention
        # branches.
        need_attn = need_attn or need_head_weights
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x, tokens)
        x, attn = self.self_attn(
            query=x,
            key=x,
            value=x,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        x = self.self_attn_out(x, tokens)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x, tokens)

        if self.encoder_attn is not None and encoder_out is not None:
            residual = x
            if self.normalize_before:
                x = self.encoder_attn_layer_norm(x, tokens)
            x, attn = self.encoder_attn(
                query=x,
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn
                or need_head_weights
                or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
            )
            x = self.encoder_attn_out(x, tokens)
            x = self.residual_connection(self.dropout_module(x), residual)
            if not self.normalize_before:
                x = self.encoder_attn_layer_norm(x, tokens)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x, tokens)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        x = self.fc2(self.fc2_norm(x, tokens))
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.final_layer_norm(x, tokens)
        return x, attn, None
