"""fairseq's decoder with norms of choice."""

from typing import Any, Optional

from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from rbn_fairseq.models.layers import RBNTransformerDecoderLayer
from rbn_fairseq.models.placing import place_norms, scale_by_depth, wrap
from rbn_fairseq.norms import ValidTokens

__all__ = ["RBNTransformerDecoder"]


class RBNTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        place_norms(self, cfg.norms, side=1)
        scale_by_depth(self.layers, cfg, side=1)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build one layer; its norms are placed once all layers stand."""
        return wrap(RBNTransformerDecoderLayer(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[dict[str, list[Tensor]]],
        incremental_state: Optional[dict[str, dict[str, Optional[Tensor]]]] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        """Decode ``prev_output_tokens: (B, T)`` up to, not including, the output projection."""
        # Follows TransformerDecoderBase.extract_features_scriptable.
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        enc = encoder_padding = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            enc = encoder_out["encoder_out"][0]
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            encoder_padding = encoder_out["encoder_padding_mask"][0]

        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(
                prev_output_tokens, incremental_state=incremental_state
            )
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]

        x = self.embed_scale * self.embed_tokens(prev_output_tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)  # (T, B, C)
        if not self.training:  # as in the encoder
            x = x.contiguous()

        padding = prev_output_tokens.eq(self.padding_idx)  # (B, T)
        padding = padding if padding.any() else None
        tokens = ValidTokens.from_padding_mask(padding)

        attn: Optional[Tensor] = None
        states: list[Optional[Tensor]] = [x]
        causal = incremental_state is None and not full_context_alignment
        for index, layer in enumerate(self.layers):
            x, layer_attn, _ = layer(
                x,
                enc,
                encoder_padding,
                incremental_state,
                self_attn_mask=self.buffered_future_mask(x) if causal else None,
                self_attn_padding_mask=padding,
                need_attn=index == alignment_layer,
                need_head_weights=index == alignment_layer,
                tokens=tokens,
            )
            states.append(x)
            if layer_attn is not None and index == alignment_layer:
                attn = layer_attn.float().to(x)
        if attn is not None:
            attn = (attn if alignment_heads is None else attn[:alignment_heads]).mean(dim=0)

        if self.layer_norm is not None:
            x = self.layer_norm(x, tokens)
        x = x.transpose(0, 1)  # (B, T, C)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": states}
