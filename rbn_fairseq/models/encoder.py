"""fairseq's encoder with norms of choice."""

from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from rbn_fairseq.models.layers import RBNTransformerEncoderLayer
from rbn_fairseq.models.placing import place_norms, scale_by_depth, wrap
from rbn_fairseq.models.weight_norm import normalise_weights
from rbn_fairseq.norms import ValidTokens

__all__ = ["RBNTransformerEncoder"]


class RBNTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: TransformerConfig, *args: Any) -> None:
        super().__init__(cfg, *args)
        place_norms(self, cfg.norms, side=0)
        scale_by_depth(self.layers, cfg, side=0)
        normalise_weights(self.layers, cfg.norms.weight)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build one layer; its norms are placed once all layers stand."""
        return wrap(RBNTransformerEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> dict[str, list[Any]]:
        """Encode ``src_tokens: (B, T)``; the result is fairseq's dictionary."""
        # Follows TransformerEncoderBase.forward_scriptable.
        padding = src_tokens.eq(self.padding_idx)  # (B, T)
        has_pads = bool(padding.any())
        tokens = ValidTokens.from_padding_mask(padding if has_pads else None)

        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if has_pads:
            x = x * (1 - padding.unsqueeze(-1).type_as(x))
        x = x.transpose(0, 1)  # (T, B, C)
        if not self.training:
            # In evaluation most norms keep the layout, of which each linear layer makes a copy.
            x = x.contiguous()

        states = [x] if return_all_hiddens else []
        fc_results: list[Any] = []
        for layer in self.layers:
            x = layer(x, encoder_padding_mask=padding if has_pads else None, tokens=tokens)
            x, fc_result = x if isinstance(x, tuple) else (x, None)
            if return_all_hiddens:
                states.append(x)
                fc_results.append(fc_result)
        if self.layer_norm is not None:
            x = self.layer_norm(x, tokens)

        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32)
        return {
            "encoder_out": [x],  # (T, B, C)
            "encoder_padding_mask": [padding],  # (B, T)
            "encoder_embedding": [embedding],  # (B, T, C)
            "encoder_states": states,  # of (T, B, C)
            "fc_results": fc_results,  # of (T, B, C)
            "src_tokens": [],
            "src_lengths": [lengths.reshape(-1, 1).contiguous()],  # (B, 1)
        }
