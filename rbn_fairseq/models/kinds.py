"""The kinds of models: the stacks of each, fairseq's options that it takes over, and its sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

__all__ = [
    "CLASSIFIER", "KINDS", "LANGUAGE_MODEL", "SIDES", "TAGGER", "TRANSLATION", "ModelKind",
    "kind_of",
]  # fmt: skip

#: Stacks that a model may have.
SIDES = ("encoder", "decoder")

_SIZES = {
    "embed_dim": 512,
    "ffn_embed_dim": 2048,
    "layers": 6,
    "attention_heads": 8,
    "normalize_before": False,
}
_DROPOUT = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
#: Options of fairseq for other layers, attention or weights than norms are planned for.
_OTHER_LAYERS = (
    "base_layers", "base_sublayers", "base_shuffle", "decoder_layers_to_keep",
    "decoder_xformers_att_config", "quant_noise_pq", "quant_noise_pq_block_size",
    "quant_noise_scalar",
)  # fmt: skip
_OTHER_STACKS = (
    *_OTHER_LAYERS, "encoder_layers_to_keep", "encoder_xformers_att_config",
    "cross_self_attention", "char_inputs",
    "adaptive_input", "tie_adaptive_weights", "tie_adaptive_proj",
    "merge_src_tgt_embed",  # fairseq cannot read its checkpoints
)  # fmt: skip
_TINY = {"embed_dim": 128, "ffn_embed_dim": 256, "layers": 2, "attention_heads": 4}  # for CPUs


@dataclass(frozen=True)
class ModelKind:
    """A kind of Transformer.

    Attributes:
        name: by which fairseq knows its model; an architecture without a size.
        sides: its stacks, of :data:`SIDES`.
        base: fairseq's options that it takes over, but for those of stacks that it has not.
        architectures: by what stands behind ``name_``: sizes of a stack and dropouts that differ
            from the plain name's. To each belongs one with ``_pre``, which is Pre-Norm.
        task: the task for it.
        left_out: options of ``base`` that it does not take over.
    """

    name: str
    sides: tuple[str, ...]
    base: type[FairseqDataclass]
    architectures: Mapping[str, Mapping[str, Any]]
    task: str
    left_out: tuple[str, ...] = ()

    def _preset(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for key, value in {**_SIZES, **_DROPOUT, **chosen}.items()
            for name in ([f"{side}_{key}" for side in self.sides] if key in _SIZES else [key])
        }

    @property
    def presets(self) -> dict[str, dict[str, Any]]:
        """What each architecture sets, by its name; the plain name's are defaults."""
        presets = {self.name: self._preset({})}
        for name, chosen in self.architectures.items():
            for end, placed in (("", {}), ("_pre", {"normalize_before": True})):
                presets[f"{self.name}_{name}{end}"] = self._preset({**chosen, **placed})
        return presets


TRANSLATION = ModelKind(
    "rbn_transformer",
    SIDES,
    TransformerConfig,
    {  # as fairseq's of the same name, but for `tiny`
        "tiny": _TINY,
        "iwslt_de_en": {"ffn_embed_dim": 1024, "attention_heads": 4},
        "wmt_en_de": {},
        "wmt_en_de_big": {
            "embed_dim": 1024,
            "ffn_embed_dim": 4096,
            "attention_heads": 16,
            "dropout": 0.3,
            "attention_dropout": 0.1,
        },
    },
    "translation_rbn",
    left_out=_OTHER_STACKS,
)
_OF_PAPER = {"embed_dim": 256, "ffn_embed_dim": 2100, "attention_heads": 1}
LANGUAGE_MODEL = ModelKind(
    "rbn_transformer_lm",
    ("decoder",),
    TransformerLanguageModelConfig,
    {
        "tiny": _TINY,
        "ptb": _OF_PAPER | {"layers": 3, "dropout": 0.3},
        "wikitext103": _OF_PAPER,
    },
    "language_modeling_rbn",
    left_out=(
        *_OTHER_LAYERS, "character_embeddings", "character_filters", "character_embedding_dim",
        "char_embedder_highway_layers", "scale_fc", "scale_attn", "scale_heads", "scale_resids",
    ),
)  # fmt: skip


def _encoding(name: str, task: str, architectures: Mapping[str, Any]) -> ModelKind:
    """Return a kind of model that is an encoder alone."""
    of_decoders = (
        "max_target_positions", "share_decoder_input_output_embed", "share_all_embeddings",
        "adaptive_softmax_cutoff", "adaptive_softmax_dropout", "adaptive_softmax_factor",
        "no_cross_attention", "no_decoder_final_norm",
    )  # fmt: skip
    return ModelKind(
        name, ("encoder",), TransformerConfig, architectures, task, _OTHER_STACKS + of_decoders
    )


CLASSIFIER = _encoding(
    "rbn_transformer_classifier",
    "text_classification_rbn",
    {
        "tiny": _TINY,
        "paper": {"embed_dim": 32, "ffn_embed_dim": 256, "layers": 1, "attention_heads": 4},
    },
)
TAGGER = _encoding(
    "rbn_transformer_tagger",
    "sequence_tagging_rbn",
    {  # the paper's widths: heads times channels of a head, 14 * 128 and 4 * 64
        "tiny": _TINY,
        "conll2003": {
            "embed_dim": 1792,
            "ffn_embed_dim": 3584,
            "layers": 2,
            "attention_heads": 14,
            "dropout": 0.15,
        },
        "resume": {
            "embed_dim": 256,
            "ffn_embed_dim": 512,
            "layers": 2,
            "attention_heads": 4,
            "dropout": 0.15,
        },
    },
)

#: The kinds by name.
KINDS = {kind.name: kind for kind in (TRANSLATION, LANGUAGE_MODEL, CLASSIFIER, TAGGER)}


def kind_of(architecture: str) -> Optional[ModelKind]:
    """Return the kind of an architecture; ``None`` if it is none of ours."""
    return next((kind for kind in KINDS.values() if architecture in kind.presets), None)
