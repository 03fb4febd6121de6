"""Embeddings of unit length (FixNorm)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["UnitProjection", "output_weight", "set_unit_embeddings"]


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=-1, eps=1e-6)  # which is not 0 in half precision


class _UnitEmbedding(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return _unit(super().forward(tokens))


class UnitProjection(nn.Linear):
    """A linear map whose rows are divided by their lengths."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x: (..., C)`` to ``(..., V)``."""
        return F.linear(x, _unit(self.weight), self.bias)

    def make_generation_fast_(self, **_: Any) -> None:
        """Divide once and for all: fairseq calls this before it generates."""
        self.weight = nn.Parameter(_unit(self.weight.detach()))
        self.__class__ = nn.Linear  # type: ignore[assignment]


def output_weight(projection: nn.Linear) -> Tensor:
    """Return the weight ``(V, C)`` by which an output projection multiplies."""
    weight = projection.weight
    return _unit(weight) if isinstance(projection, UnitProjection) else weight


def set_unit_embeddings(model: Any) -> None:
    """Divide the embedding of every type by its length, wherever the model reads it.

    That is ``w / ||w||`` at the input, before fairseq's factor ``sqrt(C)``, and in the output
    projection of a decoder (FixNorm: Nguyen and Chiang, 2018, Improving Lexical Choice; Nguyen and
    Salazar, 2019, Transformers without Tears). The weights keep their names. Their first values
    at the input are uniform in [-0.01, 0.01], as in the authors' code (the shorter they are, the
    faster they turn), unless a file gives them.
    """
    for side in model.kind.sides:
        stack, cfg = getattr(model, side), getattr(model.cfg, side)
        embedding = stack.embed_tokens
        if type(embedding) is nn.Embedding:  # another stack may share it, and have set it already
            # Padding's in any case: the output projection reads it, and where it is 0, as fairseq's
            # is, the gradient of its direction is without bound.
            rows = embedding.weight
            rows = rows[embedding.padding_idx] if cfg.embed_path else rows
            nn.init.uniform_(rows, -0.01, 0.01)
        embedding.__class__ = _UnitEmbedding  # as torch's parametrisations do
        if side == "decoder":
            stack.output_projection.__class__ = UnitProjection
