"""The Transformer with a choice of norms."""

import logging
from functools import partial
from typing import Any, Optional

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY, register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerModelBase,
)
from hydra.core.config_store import ConfigStore
from torch import Tensor, nn

from rbn_fairseq.models.attention import PackedAttention
from rbn_fairseq.models.config import PRESETS, config_class, fill_preset, resolve
from rbn_fairseq.models.decoder import RBNTransformerDecoder, padded_extra
from rbn_fairseq.models.encoder import RBNTransformerEncoder
from rbn_fairseq.models.linear import centre_weights
from rbn_fairseq.models.loss import HAS_CHUNKS, Wanted, label_smoothed_loss, pack_targets
from rbn_fairseq.models.refusals import OF_MODEL, refuse, task_provides
from rbn_fairseq.models.state_dicts import drop_length_bins, explain
from rbn_fairseq.norms import has_population_norm, lay_out, on_registration

__all__ = ["RBNTransformerModel"]

logger = logging.getLogger(__name__)


@register_model("rbn_transformer", dataclass=config_class())
class RBNTransformerModel(TransformerModelBase):
    """fairseq's Transformer in which every norm is a choice.

    It computes the real tokens of a batch alone. With ``layer`` everywhere it is fairseq's
    ``transformer``: same outputs from the same weights, to rounding, and state dicts go both ways.
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the model to fairseq's parser."""
        gen_parser_from_dataclass(parser, config_class()(), with_prefix="")

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RBNTransformerModel":
        """Build the model from a DictConfig or Namespace.

        Raises:
            ValueError: for a malformed plan, an unknown norm, a parameter outside its range, a
                norm where it may not stand, or an option that does not go with the norms.
        """
        model: RBNTransformerModel = super().build_model(resolve(cfg), task)
        centre_weights(model)
        refuse(OF_MODEL, model.cfg, model)
        model.warn(task)
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

    @property
    def gives_loss(self) -> bool:
        """Whether :meth:`forward` can return a loss, for which no logits are made.

        Not in half precision, where sums over all types need more than its range, and not where
        a subclass has a way of its own to the probabilities.
        """
        ways = ("forward", "get_normalized_probs", "get_targets")
        plain = all(getattr(type(self), way) is getattr(RBNTransformerModel, way) for way in ways)
        layer = self.decoder.output_projection  # None with an adaptive softmax
        return (
            HAS_CHUNKS
            and plain
            and type(self.decoder).output_layer is TransformerDecoderBase.output_layer
            and type(layer) is nn.Linear
            and layer.bias is None
            and layer.weight.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled(layer.weight.device.type)
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        features_only: bool = False,
        wanted: Optional[Wanted] = None,
    ) -> Any:
        """Run encoder and decoder on the batch's real tokens.

        Args:
            src_tokens: ``(B, S)``.
            src_lengths: as fairseq's; not read.
            prev_output_tokens: ``(B, T)``.
            features_only: leave the output projection out, and attention weights.
            wanted: return a :class:`Loss` in place of logits, where :attr:`gives_loss`.

        Returns:
            In evaluation what fairseq's ``transformer`` returns, logits ``(B, T, V)``, 0 at
            padding, and a dictionary. In training logits of rows ``(N, V)`` of real tokens, and a
            dictionary without attention weights. In both the dictionary has the ``layout`` of the
            rows, by which :meth:`get_targets` orders the targets.
        """
        source, target = lay_out(
            src_tokens.ne(self.encoder.padding_idx),
            prev_output_tokens.ne(self.decoder.padding_idx),
        )
        rows, _ = self.encoder.encode(source.pack(src_tokens), source)
        memory = None if self.cfg.no_cross_attention else rows
        attention = PackedAttention(source, target, memory)
        x, states, weights = self.decoder.decode(
            target.pack(prev_output_tokens),
            target,
            attention,
            need_attn=not (self.training or wanted is not None or features_only),
        )
        if wanted is not None:
            # Here rather than in the criterion: a process's gradients of weights that are used
            # outside the forward are not always added to the others'.
            return label_smoothed_loss(x, self.decoder.output_projection.weight, target, wanted)
        if not features_only:
            x = self.decoder.output_layer(x)
        if self.training:
            return x, {"attn": [None], "inner_states": states, "layout": target}
        extra = padded_extra(states, weights, source, target)
        return target.unpack(x), {**extra, "layout": target}

    def get_targets(self, sample: dict[str, Any], net_output: Any) -> Tensor:
        """Return the targets of an output of :meth:`forward`, ``(N,)`` in training, or ``(B, T)``.

        Raises:
            ValueError: if the targets have another shape than the decoder's tokens, or are more.
        """
        target: Tensor = sample["target"]
        layout = net_output[1].get("layout") if isinstance(net_output[1], dict) else None
        if layout is None:
            return target
        packed = pack_targets(target, layout, sample.get("ntokens"))
        return packed if net_output[0].dim() == 2 else target

    def warn(self, task: Any) -> None:
        """Warn of batch statistics in the decoder, and of a task that does not maintain them."""
        if has_population_norm(self.decoder):
            logger.warning(
                "Norms with batch statistics in the decoder: in training, they let a position see "
                "later target tokens. Generation uses running statistics and leaks nothing."
            )
        if has_population_norm(self) and not task_provides(task, "running statistics"):
            logger.warning(
                "This task does not maintain running statistics: dropped updates move them, "
                "processes do not agree on them, no bins of lengths are cut, TID is not measured, "
                "and modes that they do not go with are not refused. Use --task translation_rbn."
            )

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load weights and population statistics, as fairseq does.

        Without bins of sentence lengths it takes, of a model with them, the statistics of all
        lengths.

        Raises:
            ValueError: if the weights belong to dictionaries of other sizes, or to norms with other
                population statistics.
        """
        expected = self.state_dict()
        state_dict = drop_length_bins(expected, state_dict)
        # fairseq's moving average (--store-ema) loads states without versions; fairseq would take
        # them for those of old models, which have no final norms, and drop this model's.
        versions = {name: expected[name] for name in ("encoder.version", "decoder.version")}
        state_dict = versions | state_dict
        try:
            return super().load_state_dict(state_dict, strict)
        except RuntimeError as error:
            message = explain(expected, state_dict)
            if message is None:
                raise
            raise ValueError(message) from error


def _register_config() -> None:
    """Tell fairseq and Hydra of the options of a norm that was registered."""
    # As in fairseq's register_model.
    MODEL_DATACLASS_REGISTRY["rbn_transformer"] = config = config_class()
    setattr(RBNTransformerModel, "__dataclass", config)  # noqa: B010 - its name is not mangled
    node = config()
    node._name = "rbn_transformer"
    ConfigStore.instance().store("rbn_transformer", node, group="model", provider="fairseq")


on_registration(_register_config)

for _name, _preset in PRESETS.items():
    if _name != "rbn_transformer":  # registered with the model itself
        register_model_architecture("rbn_transformer", _name)(partial(fill_preset, preset=_preset))
