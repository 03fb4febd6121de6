"""fairseq's decoder with norms of choice."""

from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from rbn_fairseq.models.attention import Attention, DecodingAttention, PackedAttention
from rbn_fairseq.models.config import RBNConfig
from rbn_fairseq.models.encoder import add_positions
from rbn_fairseq.models.layers import RBNTransformerDecoderLayer
from rbn_fairseq.models.placing import place_norms
from rbn_fairseq.norms import BatchLayout, lay_out

__all__ = ["RBNTransformerDecoder", "padded_extra"]


class RBNTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with the norms that ``cfg.norms`` plans, on rows of real tokens."""

    def __init__(self, cfg: RBNConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        place_norms(self, cfg, "decoder")

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build one layer; its norms are placed once all layers stand."""
        return RBNTransformerDecoderLayer(cfg, no_encoder_attn)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[dict[str, list[Tensor]]],
        incremental_state: Optional[dict[str, dict[str, Optional[Tensor]]]] = None,
        full_context_alignment: bool = False,
        *_: Any,
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        """Decode ``prev_output_tokens: (B, T)`` up to, not including, the output projection.

        For generators, which have fairseq's output of the encoder. A step is fairseq's own.
        Attention is the last layer's, averaged over all heads: fairseq's choice of a layer and of
        heads is not read.
        """
        # Follows TransformerDecoderBase.extract_features_scriptable.
        memory = padding = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            memory = encoder_out["encoder_out"][0]  # (S, B, C)
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            padding = encoder_out["encoder_padding_mask"][0]  # (B, S)
        if incremental_state is not None:
            return self._step(prev_output_tokens, memory, padding, incremental_state)

        valid = prev_output_tokens.ne(self.padding_idx)
        real = valid  # without a source, as if it were the target
        if memory is not None:
            real = valid.new_ones(memory.shape[1::-1]) if padding is None else ~padding.bool()
        source, target = lay_out(real, valid)
        rows = None if memory is None else source.pack(memory.transpose(0, 1))
        attention = PackedAttention(source, target, rows, causal=not full_context_alignment)
        x, states, weights = self.decode(
            target.pack(prev_output_tokens), target, attention, need_attn=True
        )
        return target.unpack(x), padded_extra(states, weights, source, target)

    def decode(
        self, tokens: Tensor, layout: BatchLayout, attention: PackedAttention, need_attn: bool
    ) -> tuple[Tensor, list[Tensor], Optional[Tensor]]:
        """Decode a batch's real tokens up to, not including, the output projection.

        Args:
            tokens: ``(N,)``, in the order of the layout.
            layout: where sentences lie in them.
            attention: of the batch.
            need_attn: return the weights of the last layer's cross-attention.

        Returns:
            ``(N, C)``; each layer's input and the output, ``(N, C)``; the weights, ``(N, heads,
            S)``, or ``None``.
        """
        x = add_positions(self, self._embed(tokens), layout)
        return self._run_layers(x, attention, layout, need_attn)

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.embed_scale * self.embed_tokens(tokens)
        return x if self.project_in_dim is None else self.project_in_dim(x)

    def _run_layers(
        self, x: Tensor, attention: Attention, layout: Optional[BatchLayout], need_attn: bool
    ) -> tuple[Tensor, list[Tensor], Optional[Tensor]]:
        """Decode embedded tokens with their positions; see :meth:`decode`."""
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x, layout)
        x = self.dropout_module(x)
        if layout is None:
            x = x.transpose(0, 1)  # (1, B, C)
        states, weights = [x], None
        for number, layer in enumerate(self.layers):
            last = number == self.num_layers - 1
            x, weights = layer(x, attention, layout, need_attn=need_attn and last)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x, layout)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, states, weights

    def _step(
        self,
        tokens: Tensor,
        memory: Optional[Tensor],
        memory_padding: Optional[Tensor],
        state: dict[str, dict[str, Optional[Tensor]]],
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        """Decode the last of ``tokens: (B, T)``, whose keys and values ``state`` keeps."""
        x = self._embed(tokens[:, -1:].contiguous())
        if self.embed_positions is not None:
            x = x + self.embed_positions(tokens, incremental_state=state)[:, -1:]

        padding = tokens[:, -1:].eq(self.padding_idx)
        attention = DecodingAttention(
            state, padding if padding.any() else None, memory, memory_padding
        )
        x, states, weights = self._run_layers(x, attention, None, need_attn=True)  # (1, B, C)
        if weights is not None:  # (heads, B, 1, S)
            weights = weights.float().mean(0).to(x)
        return x.transpose(0, 1), {"attn": [weights], "inner_states": states}


def padded_extra(
    states: list[Tensor], weights: Optional[Tensor], source: BatchLayout, target: BatchLayout
) -> dict[str, list[Optional[Tensor]]]:
    """Return fairseq's second output of a decoder.

    Args:
        states: of the layers, ``(N, C)``.
        weights: of a cross-attention, ``(N, heads, S)``, or ``None``.
        source: layout of the encoder's rows.
        target: layout of the decoder's.

    Returns:
        ``attn``: ``(B, T, S)``, averaged over heads; ``inner_states``: of ``(T, B, C)``.
    """
    attn = None
    if weights is not None:
        assert source.positions is not None
        by_place = target.unpack(weights.mean(1))  # (B, T, S), without padding in front
        # Where in its sentence each source position is; padding is as the place behind the last.
        behind = by_place.shape[2]
        offsets = source.unpack(source.offsets() - behind) + behind  # (B, S)
        places = offsets.unsqueeze(1).expand(-1, by_place.shape[1], -1)
        attn = torch.nn.functional.pad(by_place, (0, 1)).gather(2, places).to(states[-1])
    return {
        "attn": [attn],
        "inner_states": [target.unpack(state).transpose(0, 1) for state in states],
    }
