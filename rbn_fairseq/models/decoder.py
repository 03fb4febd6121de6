"""fairseq's decoder with norms of choice."""

from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from rbn_fairseq.models.attention import Attention, DecodingAttention, PackedAttention
from rbn_fairseq.models.config import RBNConfig
from rbn_fairseq.models.encoder import add_positions
from rbn_fairseq.models.layers import RBNTransformerDecoderLayer
from rbn_fairseq.models.placing import place_norms, scale_by_depth, wrap
from rbn_fairseq.norms import BatchLayout, lay_out

__all__ = ["RBNTransformerDecoder", "padded_extra"]


class RBNTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: RBNConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        place_norms(self, cfg.norms, cfg.norms.decoder)
        scale_by_depth(self.layers, cfg.norms, cfg.norms.decoder)

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
        """Decode ``prev_output_tokens: (B, T)`` up to, not including, the output projection.

        For generators, which have fairseq's output of the encoder. A step is fairseq's own.
        """
        # Follows TransformerDecoderBase.extract_features_scriptable.
        memory = padding = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            memory = encoder_out["encoder_out"][0]  # (S, B, C)
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            padding = encoder_out["encoder_padding_mask"][0]  # (B, S)
        choice = alignment_layer, alignment_heads
        if incremental_state is not None:
            return self._step(prev_output_tokens, memory, padding, incremental_state, *choice)

        valid = prev_output_tokens.ne(self.padding_idx)
        real = valid  # without a source, as if it were the target
        if memory is not None:
            real = valid.new_ones(memory.shape[1::-1]) if padding is None else ~padding.bool()
        source, target = lay_out(real, valid)
        rows = None if memory is None else source.pack(memory.transpose(0, 1))
        attention = PackedAttention(source, target, rows, causal=not full_context_alignment)
        layer = self.num_layers - 1 if alignment_layer is None else alignment_layer
        x, states, weights = self.decode(
            target.pack(prev_output_tokens), target, attention, weights_of=layer
        )
        return target.unpack(x), padded_extra(states, weights, source, target, alignment_heads)

    def decode(
        self,
        tokens: Tensor,
        layout: BatchLayout,
        attention: PackedAttention,
        weights_of: Optional[int] = None,
    ) -> tuple[Tensor, list[Tensor], Optional[Tensor]]:
        """Decode a batch's real tokens up to, not including, the output projection.

        Args:
            tokens: ``(N,)``, in the order of the layout.
            layout: where sentences lie in them.
            attention: of the batch.
            weights_of: the layer whose cross-attention's weights are wanted.

        Returns:
            ``(N, C)``; each layer's input and the output, ``(N, C)``; the weights, ``(N, heads,
            S)``, or ``None``.
        """
        x = add_positions(self, self._embed(tokens), layout)
        return self._run_layers(x, attention, layout, weights_of)

    def _embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        return x

    def _run_layers(
        self,
        x: Tensor,
        attention: Attention,
        layout: Optional[BatchLayout],
        weights_of: Optional[int],
    ) -> tuple[Tensor, list[Tensor], Optional[Tensor]]:
        """Decode embedded tokens with their positions; see :meth:`decode`."""
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        if layout is None:
            x = x.transpose(0, 1)  # (1, B, C)
        states, weights = [x], None
        for number, layer in enumerate(self.layers):
            x, attended = layer(x, attention, layout, need_attn=number == weights_of)
            states.append(x)
            weights = weights if attended is None else attended
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
        alignment_layer: Optional[int],
        alignment_heads: Optional[int],
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        """Decode the last of ``tokens: (B, T)``, whose keys and values ``state`` keeps."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=state)[:, -1:]
        tokens = tokens[:, -1:]
        x = self._embed(tokens.contiguous())
        if positions is not None:
            x = x + positions

        padding = tokens.eq(self.padding_idx)
        attention = DecodingAttention(
            state, padding if padding.any() else None, memory, memory_padding
        )
        layer = self.num_layers - 1 if alignment_layer is None else alignment_layer
        x, states, weights = self._run_layers(x, attention, None, layer)  # (1, B, C)
        if weights is not None:  # (heads, B, 1, S)
            weights = weights[:alignment_heads].float().mean(0).to(x)
        return x.transpose(0, 1), {"attn": [weights], "inner_states": states}


def padded_extra(
    states: list[Tensor],
    weights: Optional[Tensor],
    source: BatchLayout,
    target: BatchLayout,
    heads: Optional[int] = None,
) -> dict[str, list[Optional[Tensor]]]:
    """Return fairseq's second output of a decoder.

    Args:
        states: of the layers, ``(N, C)``.
        weights: of a cross-attention, ``(N, heads, S)``, or ``None``.
        source: layout of the encoder's rows.
        target: layout of the decoder's.
        heads: how many of the first heads are averaged over; ``None`` = all.

    Returns:
        ``attn``: ``(B, T, S)``, averaged over heads; ``inner_states``: of ``(T, B, C)``.
    """
    attn = None
    if weights is not None:
        assert source.positions is not None
        by_place = target.unpack(weights[:, :heads].mean(1))  # (B, T, S), without padding in front
        # Where in its sentence each source position is; padding is as the place behind the last.
        behind = by_place.shape[2]
        offsets = source.unpack(source.offsets() - behind) + behind  # (B, S)
        places = offsets.unsqueeze(1).expand(-1, by_place.shape[1], -1)
        attn = torch.nn.functional.pad(by_place, (0, 1)).gather(2, places).to(states[-1])
    return {
        "attn": [attn],
        "inner_states": [target.unpack(state).transpose(0, 1) for state in states],
    }
