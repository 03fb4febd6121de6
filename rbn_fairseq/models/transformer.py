"""The Transformer with a choice of norms."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Optional

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rbn_fairseq.models.centring import centre_weights
from rbn_fairseq.models.config import (
    PRESETS,
    NormConfig,
    RBNTransformerConfig,
    fill_preset,
    resolve,
)
from rbn_fairseq.models.deepnorm import deepnorm
from rbn_fairseq.models.first_weights import draw_weights
from rbn_fairseq.models.layers import RBNTransformerDecoderLayer, RBNTransformerEncoderLayer
from rbn_fairseq.models.loading import check_dictionaries, explain_other_norms
from rbn_fairseq.models.pruning import keep_layers
from rbn_fairseq.models.subnorm import place_sub_norm, sub_norm_gains
from rbn_fairseq.models.weight_norm import normalise_weights
from rbn_fairseq.norms import (
    NORMS,
    MovingAverageBatchNorm,
    NormPlace,
    NormPlan,
    PopulationNorm,
    ValidTokens,
    build_norm,
    has_population_norm,
    parse_norms,
)

__all__ = ["RBNTransformerDecoder", "RBNTransformerEncoder", "RBNTransformerModel"]

logger = logging.getLogger(__name__)

_PLACES = {  # site of a plan -> the layer's attribute, which keeps fairseq's name
    "self": "self_attn_layer_norm",
    "cross": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}


def _refuse_leaks(names: Collection[str], option: str) -> None:
    for name in names:
        if NORMS[name].leaks:
            raise ValueError(
                f"{option}: `{name}` may not stand in the decoder: {NORMS[name].leaks}. Use it in "
                "the encoder (--norm-encoder) and another norm here, such as `layer`."
            )


def _place_norms(stack: Any, norms: NormConfig, side: int) -> None:
    """Put the planned norms into an encoder or decoder built by fairseq; side 1 is the decoder."""
    option = ("--norm-encoder", "--norm-decoder")[side]
    plan = (norms.encoder, norms.decoder)[side]
    final = (norms.encoder_final, norms.decoder_final)[side]
    causal = side == 1
    # Not by iterating: LayerDrop's list drops layers at random when iterated over.
    layers = [stack.layers[index] for index in range(len(stack.layers))]
    sites = [site for site, name in _PLACES.items() if getattr(layers[0], name, None) is not None]
    read = NormPlan(plan, norms.depths[side], sites, NORMS, option)
    names = parse_norms(final, NORMS, f"{option}-final")
    place = NormPlace(layers[0].embed_dim, layers[0].self_attn.num_heads, norms.sync)
    hidden = replace(place, channels=layers[0].fc1.out_features)
    for number, layer in zip(norms.kept[side], layers, strict=True):
        for site in sites:
            if causal:
                _refuse_leaks(read.norms(number, site), option)
            norm = build_norm(read.norms(number, site), place, norms.options)
            setattr(layer, _PLACES[site], norm)
            if norms.placement == "sub":
                inner = hidden if site == "ffn" else place
                norm = build_norm(read.norms(number, site), inner, norms.options)
                place_sub_norm(layer, site, norm)
    if causal:
        _refuse_leaks(names, f"{option}-final")
    if stack.layer_norm is not None:
        stack.layer_norm = build_norm(names, place, norms.options)


def _scale_by_depth(layers: Any, cfg: TransformerConfig, side: int) -> None:
    """Give residuals and first weights the sizes of the arrangement; side 1 is the decoder."""
    norms = cfg.norms
    for index in range(len(layers)):  # LayerDrop again
        if norms.placement == "deepnorm":
            layers[index].use_deepnorm(deepnorm(*norms.depths)[side])
        elif norms.placement == "sub":
            draw_weights(layers[index], sub_norm_gains(*norms.depths)[side])


def _wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    # Follows TransformerEncoderBase.build_encoder_layer and its sister in the decoder; of
    # --checkpoint-activations the layer takes care itself.
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)


class RBNTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: TransformerConfig, *args: Any) -> None:
        super().__init__(cfg, *args)
        _place_norms(self, cfg.norms, side=0)
        _scale_by_depth(self.layers, cfg, side=0)
        normalise_weights(self.layers, cfg.norms.weight)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build one layer; its norms are placed once all layers stand."""
        return _wrap(RBNTransformerEncoderLayer(cfg, return_fc=self.return_fc), cfg)

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


class RBNTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        _place_norms(self, cfg.norms, side=1)
        _scale_by_depth(self.layers, cfg, side=1)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build one layer; its norms are placed once all layers stand."""
        return _wrap(RBNTransformerDecoderLayer(cfg, no_encoder_attn), cfg)

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


@register_model("rbn_transformer", dataclass=RBNTransformerConfig)
class RBNTransformerModel(TransformerModelBase):
    """fairseq's Transformer in which every norm is a choice.

    With ``layer`` everywhere it is fairseq's ``transformer``: same outputs from the same weights,
    and state dicts go both ways.
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the model to fairseq's parser."""
        gen_parser_from_dataclass(parser, RBNTransformerConfig(), with_prefix="")

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RBNTransformerModel":
        """Build the model from a DictConfig or Namespace.

        Raises:
            ValueError: for a malformed plan, an unknown norm, a parameter outside its range, a
                norm where it may not stand, or an option that batch statistics cannot be
                combined with.
        """
        sizes, sizes.norms = resolve(cfg)
        for option in ("cross_self_attention", "base_layers"):
            if getattr(sizes, option):
                raise ValueError(
                    f"--{option.replace('_', '-')} is not supported by rbn_transformer: its extra "
                    "sublayers have no planned norm. Leave it out."
                )
        model: RBNTransformerModel = super().build_model(sizes, task)
        centre_weights(model)
        model.check_modes()
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Module
    ) -> RBNTransformerEncoder:
        """Build the encoder; fairseq's ``build_model`` calls this."""
        return RBNTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Module
    ) -> RBNTransformerDecoder:
        """Build the decoder; fairseq's ``build_model`` calls this."""
        return RBNTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )

    def check_modes(self) -> None:
        """Refuse what batch statistics cannot be combined with, and warn of what they leak.

        Raises:
            ValueError: naming the option and the way out.
        """
        layers = (*self.encoder.layers.modules(), *self.decoder.layers.modules())
        norms = [part for part in layers if isinstance(part, PopulationNorm)]
        if self.cfg.checkpoint_activations and not all(norm.repeatable for norm in norms):
            raise ValueError(
                "--checkpoint-activations (or --offload-activations) computes activations again "
                "in the backward, when the running statistics by which `renorm`, `power` and "
                "`mabn` normalise in training have moved. Leave it out, or use another norm in "
                "the layers, such as `batch`."
            )
        if self.cfg.checkpoint_activations and self.cfg.quant_noise.pq > 0:
            raise ValueError(
                "--quant-noise-pq does not go with --checkpoint-activations (or "
                "--offload-activations): each forward writes its noise into the weights, also the "
                "one that computes activations again. Leave one of them out."
            )
        parametrised = [part for part in self.modules() if parametrize.is_parametrized(part)]
        if parametrised and self.cfg.quant_noise.pq > 0:
            raise ValueError(
                "--quant-noise-pq does not go with --norm-weight or `mabn`, whose weights are "
                "computed anew at every forward: its noise would not reach them. Leave one out."
            )
        for side, kept, depth in self._kept():
            moving = (isinstance(m, MovingAverageBatchNorm) for m in getattr(self, side).modules())
            if len(kept) < depth and any(moving):
                raise ValueError(
                    f"--{side}-layers-to-keep does not go with `mabn`: other layers would follow "
                    "its norms than those whose weights it centres. Leave it out."
                )
        if self.cfg.norms.sync and (self.cfg.encoder.layerdrop or self.cfg.decoder.layerdrop):
            raise ValueError(
                "--norm-sync does not go with --encoder-layerdrop or --decoder-layerdrop: "
                "processes that drop different layers would wait for each other for ever. Leave "
                "one of them out."
            )
        if has_population_norm(self.decoder):
            logger.warning(
                "Norms with batch statistics in the decoder: in training, they let a position see "
                "later target tokens. Generation uses running statistics and leaks nothing."
            )

    def _kept(self) -> Iterator[tuple[str, Sequence[int], int]]:
        """Yield each side with the numbers of its layers, and how many they were chosen from."""
        yield from zip(
            ("encoder", "decoder"), self.cfg.norms.kept, self.cfg.norms.depths, strict=True
        )

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load weights and population statistics, as fairseq does.

        Of a whole model's layers, those of ``--encoder-layers-to-keep`` and its sister are taken.

        Raises:
            ValueError: if the weights belong to dictionaries of other sizes or, unless ``strict``
                is false, to norms with other population statistics.
        """
        own = self.state_dict()
        check_dictionaries(own, state_dict)
        for side, kept, depth in self._kept():
            state_dict = keep_layers(state_dict, kept, depth, side)
        # fairseq's moving average (--store-ema) loads states without versions; fairseq would take
        # them for those of old models, which have no final norms, and drop this model's.
        versions = {name: own[name] for name in ("encoder.version", "decoder.version")}
        state_dict = versions | state_dict
        try:
            return super().load_state_dict(state_dict, strict)
        except RuntimeError as error:
            message = explain_other_norms(own, state_dict) if strict else None
            if message is None:
                raise
            raise ValueError(message) from error


for _name, _preset in PRESETS.items():
    if _name != "rbn_transformer":  # registered with the model itself
        register_model_architecture("rbn_transformer", _name)(partial(fill_preset, preset=_preset))
