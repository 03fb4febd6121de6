"""fairseq's encoder with norms of choice."""

from typing import Any, NamedTuple, Optional

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from rbn_fairseq.models.attention import PackedAttention
from rbn_fairseq.models.config import RBNConfig
from rbn_fairseq.models.layers import RBNTransformerEncoderLayer
from rbn_fairseq.models.linear import normalise_weights
from rbn_fairseq.models.placing import place_norms, scale_by_depth, wrap
from rbn_fairseq.norms import BatchLayout, lay_out

__all__ = ["Encoded", "RBNTransformerEncoder", "add_positions"]


class Encoded(NamedTuple):
    """An encoder's rows ``(N, C)``: output, scaled embeddings, each layer's input and the output.

    fc_results: the feed-forward outputs of layers that return them, else ``None``.
    """

    x: Tensor
    embedding: Tensor
    states: list[Tensor]
    fc_results: list[Optional[Tensor]]


class RBNTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: RBNConfig, *args: Any) -> None:
        super().__init__(cfg, *args)
        place_norms(self, cfg.norms, cfg.norms.encoder)
        scale_by_depth(self.layers, cfg.norms, cfg.norms.encoder)
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
        """Encode ``src_tokens: (B, T)``; the result is fairseq's dictionary, 0 at padding."""
        valid = src_tokens.ne(self.padding_idx)
        (layout,) = lay_out(valid)
        if token_embeddings is not None:
            token_embeddings = layout.pack(token_embeddings)
        rows = self.encode(layout.pack(src_tokens), layout, token_embeddings)

        def time_first(values: list[Any]) -> list[Any]:
            if not return_all_hiddens:
                return []
            return [
                None if rows is None else layout.unpack(rows).transpose(0, 1) for rows in values
            ]

        return {
            "encoder_out": [layout.unpack(rows.x).transpose(0, 1)],  # (T, B, C)
            "encoder_padding_mask": [valid.logical_not()],  # (B, T)
            "encoder_embedding": [layout.unpack(rows.embedding)],  # (B, T, C)
            "encoder_states": time_first(rows.states),  # of (T, B, C)
            "fc_results": time_first(rows.fc_results),  # of (T, B, C)
            "src_tokens": [],
            "src_lengths": [valid.sum(1, dtype=torch.int32).unsqueeze(1)],  # (B, 1)
        }

    def encode(
        self, tokens: Tensor, layout: BatchLayout, embeddings: Optional[Tensor] = None
    ) -> Encoded:
        """Encode a batch's real tokens.

        Args:
            tokens: ``(N,)``, in the order of the layout.
            layout: where sentences lie in them.
            embeddings: of the tokens, ``(N, C)``; ``None`` = the model's.
        """
        # Follows TransformerEncoderBase.forward_embedding and forward_scriptable.
        embedding = self.embed_scale * (
            self.embed_tokens(tokens) if embeddings is None else embeddings
        )
        x = add_positions(self, embedding, layout)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        if self.quant_noise is not None:
            x = self.quant_noise(x)

        attention = PackedAttention(layout)
        states, fc_results = [x], []
        for layer in self.layers:
            x = layer(x, attention, layout)
            x, fc_result = x if isinstance(x, tuple) else (x, None)
            states.append(x)
            fc_results.append(fc_result)
        if self.layer_norm is not None:
            x = self.layer_norm(x, layout)
        return Encoded(x, embedding, states, fc_results)


def add_positions(stack: Any, x: Tensor, layout: BatchLayout) -> Tensor:
    """Add to rows ``(N, C)`` what an encoder or decoder embeds positions with."""
    if stack.embed_positions is None or layout.rows == 0:
        return x
    longest = max(layout.counts)
    # fairseq's module tells positions from a padded batch: here, of one sentence.
    sentence = layout.lengths.new_full((1, longest), stack.padding_idx + 1)
    return x + stack.embed_positions(sentence)[0].index_select(0, layout.offsets())
