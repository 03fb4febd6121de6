"""The Transformer for language modelling, with a choice of norms."""

from typing import Any, Optional

from fairseq.models import FairseqLanguageModel
from fairseq.models.transformer import Embedding
from fairseq.modules import AdaptiveInput
from fairseq.utils import eval_str_list
from torch import Tensor, nn

from rbn_fairseq.models.attention import PackedAttention
from rbn_fairseq.models.config import RBNConfig, resolve
from rbn_fairseq.models.decoder import RBNTransformerDecoder
from rbn_fairseq.models.kinds import LANGUAGE_MODEL
from rbn_fairseq.models.loss import Wanted
from rbn_fairseq.models.output import DecodingModel
from rbn_fairseq.models.rbn_model import register
from rbn_fairseq.norms import lay_out

__all__ = ["RBNTransformerLanguageModel"]


def _embedding(cfg: Any, dictionary: Any) -> nn.Module:
    # Follows TransformerLanguageModel.build_model.
    if not cfg.adaptive_input:
        return Embedding(len(dictionary), cfg.decoder.input_dim, dictionary.pad())
    return AdaptiveInput(
        len(dictionary),
        dictionary.pad(),
        cfg.decoder.input_dim,
        cfg.adaptive_input_factor,
        cfg.decoder.embed_dim,
        eval_str_list(cfg.adaptive_input_cutoff, type=int),
    )


@register(LANGUAGE_MODEL)
class RBNTransformerLanguageModel(DecodingModel, FairseqLanguageModel):
    """fairseq's Transformer language model, a decoder alone, in which every norm is a choice.

    With ``layer`` everywhere it is fairseq's ``transformer_lm``: same outputs from the same
    weights, to rounding, and state dicts go both ways.

    In training, norms with batch statistics let a token see later ones: a training loss says
    little, and the likelihood of a text is what evaluation gives, by running statistics.
    """

    def __init__(self, cfg: RBNConfig, decoder: RBNTransformerDecoder) -> None:
        super().__init__(decoder)
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RBNTransformerLanguageModel":
        """Build the model; ``ValueError`` for norms or options that do not go together."""
        full: Any = resolve(cfg, cls.kind)
        if full.max_target_positions is None:
            full.max_target_positions = full.tokens_per_sample
        shared = full.share_decoder_input_output_embed
        if full.adaptive_input and (shared or not full.adaptive_input_cutoff):
            raise ValueError(
                "--adaptive-input needs --adaptive-input-cutoff, such as 20000,60000, and does not "
                "go with --share-decoder-input-output-embed: to share its matrices with the "
                "output, give --tie-adaptive-weights."
            )
        if full.tie_adaptive_weights and (
            not full.adaptive_input
            or full.adaptive_input_factor != full.adaptive_softmax_factor
            or full.adaptive_input_cutoff != full.adaptive_softmax_cutoff
            or full.decoder.input_dim != full.decoder.output_dim
        ):
            raise ValueError(
                "--tie-adaptive-weights makes input and output one: it needs --adaptive-input, and "
                "cutoffs, factors and widths that are the same for --adaptive-input-… and "
                "--adaptive-softmax-…, --decoder-input-dim and --decoder-output-dim."
            )
        decoder = RBNTransformerDecoder(
            full,
            task.target_dictionary,
            _embedding(full, task.source_dictionary),
            no_encoder_attn=True,
        )
        model = cls(full, decoder)
        model.finish(task)
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        wanted: Optional[Wanted] = None,
    ) -> Any:
        """Run the decoder on the batch's real tokens.

        Args:
            src_tokens: ``(B, T)``.
            src_lengths: as fairseq's; not read.
            features_only: leave the output projection out.
            wanted: return a :class:`Loss` in place of logits, where :attr:`gives_loss`.

        Returns:
            See :meth:`give`.
        """
        (layout,) = lay_out(src_tokens.ne(self.decoder.padding_idx))
        x, states, _ = self.decoder.decode(
            layout.pack(src_tokens), layout, PackedAttention(layout, layout), need_attn=False
        )
        return self.give(x, states, None, layout, layout, features_only, wanted)
