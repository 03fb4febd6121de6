"""The Transformer for translation, with a choice of norms."""

from typing import Any, Optional

from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import Tensor, nn

from rbn_fairseq.models.attention import PackedAttention
from rbn_fairseq.models.config import resolve
from rbn_fairseq.models.decoder import RBNTransformerDecoder
from rbn_fairseq.models.encoder import RBNTransformerEncoder
from rbn_fairseq.models.kinds import TRANSLATION
from rbn_fairseq.models.loss import Wanted
from rbn_fairseq.models.output import DecodingModel
from rbn_fairseq.models.rbn_model import register
from rbn_fairseq.norms import lay_out

__all__ = ["RBNTransformerModel"]


@register(TRANSLATION)
class RBNTransformerModel(DecodingModel, TransformerModelBase):
    """fairseq's Transformer in which every norm is a choice.

    It computes the real tokens of a batch alone. With ``layer`` everywhere it is fairseq's
    ``transformer``: same outputs from the same weights, to rounding, and state dicts go both ways.
    """

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RBNTransformerModel":
        """Build the model; ``ValueError`` for norms or options that do not go together."""
        model: RBNTransformerModel = super().build_model(resolve(cfg, cls.kind), task)
        model.finish(task)
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
            See :meth:`give`.
        """
        source, target = lay_out(
            src_tokens.ne(self.encoder.padding_idx), prev_output_tokens.ne(self.decoder.padding_idx)
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
        return self.give(x, states, weights, source, target, features_only, wanted)
