"""The Transformer with a choice of norms."""

import logging
from collections.abc import Collection
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
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
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
from rbn_fairseq.models.subnorm import place_sub_norm, sub_norm_gains
from rbn_fairseq.models.weight_norm import normalise_weights
from rbn_fairseq.norms import (
    NORMS,
    MovingAverageBatchNorm,
    NormPlace,
    NormPlan,
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


def _place_norms(
    stack: Any, norms: NormConfig, plan: str, final: str, option: str, causal: bool
) -> None:
    """Put the planned norms into an encoder or decoder built by fairseq."""
    # Not by iterating: LayerDrop's list drops layers at random when iterated over.
    layers = [stack.layers[index] for index in range(len(stack.layers))]
    sites = [site for site, name in _PLACES.items() if getattr(layers[0], name, None) is not None]
    read = NormPlan(plan, len(layers), sites, NORMS, option)
    names = parse_norms(final, NORMS, f"{option}-final")
    place = NormPlace(layers[0].embed_dim, layers[0].self_attn.num_heads, norms.sync)
    hidden = replace(place, channels=layers[0].fc1.out_features)
    for index, layer in enumerate(layers):
        for site in sites:
            if causal:
                _refuse_leaks(read.norms(index, site), option)
            norm = build_norm(read.norms(index, site), place, norms.options)
            setattr(layer, _PLACES[site], norm)
            if norms.placement == "sub":
                inner = hidden if site == "ffn" else place
                norm = build_norm(read.norms(index, site), inner, norms.options)
                place_sub_norm(layer, site, norm)
    if causal:
        _refuse_leaks(names, f"{option}-final")
    if stack.layer_norm is not None:
        stack.layer_norm = build_norm(names, place, norms.options)


def _scale_by_depth(layers: Any, cfg: TransformerConfig, side: int) -> None:
    """Give residuals and first weights the sizes of the arrangement; side 1 is the decoder."""
    depths = cfg.encoder.layers, cfg.decoder.layers
    for index in range(len(layers)):  # LayerDrop again
        if cfg.norms.placement == "deepnorm":
            layers[index].use_deepnorm(deepnorm(*depths)[side])
        elif cfg.norms.placement == "sub":
            draw_weights(layers[index], sub_norm_gains(*depths)[side])


def _wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    # Follows TransformerEncoderBase.build_encoder_layer and its sister in the decoder.
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)


class RBNTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with the norms that ``cfg.norms`` plans."""

    def __init__(self, cfg: TransformerConfig, *args: Any) -> None:
        super().__init__(cfg, *args)
        norms = cfg.norms
        plan, final = norms.encoder, norms.encoder_final
        _place_norms(self, norms, plan, final, "--norm-encoder", causal=False)
        _scale_by_depth(self.layers, cfg, side=0)
        normalise_weights(self.layers, norms.weight)

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
        norms = cfg.norms
        plan, final = norms.decoder, norms.decoder_final
        _place_norms(self, norms, plan, final, "--norm-decoder", causal=True)
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
        for side in (sizes.encoder, sizes.decoder):
            if side.layers_to_keep is not None and not isinstance(side.layers_to_keep, str):
                # fairseq splits a string here, though its own parser makes a list.
                side.layers_to_keep = ",".join(str(layer) for layer in side.layers_to_keep)
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
        if self.cfg.checkpoint_activations and has_population_norm(self):
            raise ValueError(
                "--checkpoint-activations (or --offload-activations) runs every forward twice, "
                "which would move the running statistics of norms such as `batch` twice and lose "
                "the penalty's gradient. Leave it out, or use `layer` norms."
            )
        parametrised = [part for part in self.modules() if parametrize.is_parametrized(part)]
        if parametrised and self.cfg.quant_noise.pq > 0:
            raise ValueError(
                "--quant-noise-pq does not go with --norm-weight or `mabn`, whose weights are "
                "computed anew at every forward: its noise would not reach them. Leave one out."
            )
        for side in ("encoder", "decoder"):
            stack, keep = getattr(self, side), getattr(self.cfg, side).layers_to_keep
            if keep and any(isinstance(part, MovingAverageBatchNorm) for part in stack.modules()):
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

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        """Load weights and population statistics, as fairseq does.

        Raises:
            ValueError: if the weights belong to dictionaries of other sizes or, unless ``strict``
                is false, to norms with other population statistics.
        """
        own = self.state_dict()
        for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
            loaded = state_dict.get(name)
            if loaded is not None and len(loaded) != len(own[name]):
                side = "source" if name.startswith("encoder") else "target"
                raise ValueError(
                    f"The checkpoint was trained with a {side} dictionary of {len(loaded)} types, "
                    f"but the data's has {len(own[name])}. Give the data directory that the "
                    "checkpoint was trained on."
                )
        try:
            return super().load_state_dict(state_dict, strict, *args, **kwargs)
        except RuntimeError as error:
            statistics = [name for name in own if ".population." in name]
            lacking = [name for name in statistics if name not in state_dict]
            more = [name for name in state_dict if ".population." in name and name not in own]
            if not strict or not lacking + more:
                raise
            word, name = ("lacks", lacking[0]) if lacking else ("has", more[0])
            raise ValueError(
                f"The checkpoint was trained with other norms than this model's: it {word} "
                f"population statistics, such as `{name}`. Give the norms that it was trained "
                "with (--norm-encoder, --norm-decoder; `layer` for fairseq's own `transformer`), "
                "or start a new training from its weights: --init-from FILE with --task "
                "translation_rbn takes them and estimates the statistics that they lack."
            ) from error


for _name, _preset in PRESETS.items():
    if _name != "rbn_transformer":  # registered with the model itself
        register_model_architecture("rbn_transformer", _name)(partial(fill_preset, preset=_preset))
