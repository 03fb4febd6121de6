"""fairseq's encoder with norms of choice."""

from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from rbn_fairseq.models.attention import PackedAttention
from rbn_fairseq.models.config import RBNConfig
from rbn_fairseq.models.layers import RBNTransformerEncoderLayer
from rbn_fairseq.models.linear import normalise_weights
from rbn_fairseq.models.placing import place_norms
from rbn_fairseq.norms import BatchLayout, lay_out

__all__ = ["RBNTransformerEncoder", "add_positions"]


class RBNTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with the norms that ``cfg.norms`` plans, on rows of real tokens."""

    def __init__(self, cfg: RBNConfig, *args: Any) -> None:
        super().__init__(cfg, *args)
        place_norms(self, cfg, "encoder")
        normalise_weights(self.layers, cfg.norms.weight)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build one layer; its norms are placed once all layers stand."""
        return RBNTransformerEncoderLayer(cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> dict[str, list[Any]]:
        """Encode ``src_tokens: (B, T)``; the result is fairseq's dictionary, 0 at padding.

        Its ``encoder_embedding`` and ``fc_results``, which no generator reads, are empty.
        """
        valid = src_tokens.ne(self.padding_idx)
        (layout,) = lay_out(valid)
        embeddings = None if token_embeddings is None else layout.pack(token_embeddings)
        x, states = self.encode(layout.pack(src_tokens), layout, embeddings)
        wanted = states if return_all_hiddens else []
        return {
            "encoder_out": [layout.unpack(x).transpose(0, 1)],  # (T, B, C)
            "encoder_padding_mask": [valid.logical_not()],  # (B, T)
            "encoder_embedding": [],
            "encoder_states": [layout.unpack(rows).transpose(0, 1) for rows in wanted],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [valid.sum(1, dtype=torch.int32).unsqueeze(1)],  # (B, 1)
        }

    def encode(
        self, tokens: Tensor, layout: BatchLayout, embeddings: Optional[Tensor] = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Encode a batch's real tokens.

        Args:
            tokens: ``(N,)``, in the order of the layout.
            layout: where sentences lie in them.
            embeddings: of the tokens, ``(N, C)``; ``None`` = the model's.

        Returns:
            ``(N, C)``; and each layer's input and the last one's output, ``(N, C)``.
        """
        # Follows TransformerEncoderBase.forward_embedding and forward_scriptable.
        x = self.embed_scale * (self.embed_tokens(tokens) if embeddings is None else embeddings)
        x = add_positions(self, x, layout)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x, layout)
        x = self.dropout_module(x)

        attention, states = PackedAttention(layout), [x]
        for layer in self.layers:
            x = layer(x, attention, layout)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x, layout)
        return x, states


def add_positions(stack: Any, x: Tensor, layout: BatchLayout) -> Tensor:
    """Add to rows ``(N, C)`` what an encoder or decoder embeds positions with."""
    if stack.embed_positions is None or layout.rows == 0:
        return x
    longest = max(layout.counts)
    # fairseq's module tells positions from a padded batch: here, of one sentence.
    sentence = layout.lengths.new_full((1, longest), stack.padding_idx + 1)
    return x + stack.embed_positions(sentence)[0].index_select(0, layout.offsets())
