"""Models that are an encoder alone, with what reads its output."""

from typing import Any, ClassVar, Self

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import Linear, TransformerModelBase
from torch import Tensor

from rbn_fairseq.models.config import RBNConfig, resolve
from rbn_fairseq.models.encoder import RBNTransformerEncoder
from rbn_fairseq.models.rbn_model import RBNModel
from rbn_fairseq.norms import BatchLayout, lay_out

__all__ = ["EncodingModel"]


class EncodingModel(RBNModel, BaseFairseqModel):
    """Base of a model of an encoder and a linear layer, ``output_projection``.

    Args:
        cfg: fairseq's sizes, and the norms.
        encoder: the encoder.
        labels: number of types in the dictionary of labels, fairseq's special ones among them.

    Attributes:
        first_label: number of the first label in that dictionary; types before it are none.
    """

    first_label: ClassVar[int]

    def __init__(self, cfg: RBNConfig, encoder: RBNTransformerEncoder, labels: int) -> None:
        super().__init__()
        self.cfg, self.encoder = cfg, encoder
        self.output_projection = Linear(cfg.encoder.embed_dim, labels - self.first_label)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Self:
        """Build the model; ``ValueError`` for norms or options that do not go together."""
        full = resolve(cfg, cls.kind)
        words = task.source_dictionary
        embedding = TransformerModelBase.build_embedding(
            full, words, full.encoder.embed_dim, full.encoder.embed_path
        )
        encoder = RBNTransformerEncoder(full, words, embedding)
        model = cls(full, encoder, len(task.target_dictionary))
        model.finish(task)
        return model

    def encode(self, src_tokens: Tensor) -> tuple[Tensor, BatchLayout]:
        """Encode ``src_tokens: (B, S)``: the rows ``(N, C)`` of real tokens, and their layout."""
        (layout,) = lay_out(src_tokens.ne(self.encoder.padding_idx))
        rows, _ = self.encoder.encode(layout.pack(src_tokens), layout)
        return rows, layout

    def max_positions(self) -> int:
        """Return the length of the longest text."""
        return int(self.encoder.max_positions())
