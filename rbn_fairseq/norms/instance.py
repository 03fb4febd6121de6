"""Instance normalisation: each channel over the real tokens of its own sentence."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, on_rows, sentences_of

__all__ = ["InstanceNorm", "InstanceNormOptions"]


@dataclass(frozen=True)
class InstanceNormOptions(NormOptions, norm="instance"):
    """Parameters of ``instance``."""

    eps: float = option(1e-5, "added to the variance", range="(0, inf)")


class InstanceNorm(AffineNorm):
    """Instance norm (Ulyanov et al., 2016, arXiv:1607.08022) that does not see padding.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with the mean and biased variance of a
    channel over the real tokens of one sentence. The same in training and in evaluation: there
    are no running statistics. A sentence of one token gives the bias.

    Statistics are two-pass, in fp32 or better whatever the input's dtype.

    Not for a causal decoder: a position would see later tokens.

    Args:
        channels: number of channels C.
        options: eps.
    """

    name = "instance"
    summary = "each channel by its mean and variance over the sentence's real tokens"
    source = "Ulyanov et al., 2016, Instance Normalization"
    options_type = InstanceNormOptions
    options: InstanceNormOptions
    leaks = (
        "its statistics are those of the whole sentence, so that in training a position sees later "
        "tokens, and in generation there is only one token to take them from"
    )

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x``; same shape and dtype out.

        Args:
            x: rows ``(N, C)`` of real tokens; or with padding ``(T, B, C)``.
            tokens: the layout of the rows; or which of ``x``'s positions are real tokens. ``None``
                = all.

        Raises:
            ValueError: if ``tokens`` describes another shape than ``x``'s, or nothing tells the
                sentences apart.
        """
        return on_rows(self._normalise, x, tokens, by_sentence=True)

    def _normalise(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        layout = sentences_of(layout)
        dtype = torch.promote_types(rows.dtype, torch.float32)
        wide, weight, bias = rows.to(dtype), self.weight.to(dtype), self.bias.to(dtype)
        centred = wide - layout.by_row(_mean(wide, layout))
        scale = torch.rsqrt(_mean(centred.square(), layout) + self.options.eps)  # (B, C)
        return torch.addcmul(bias, centred * layout.by_row(scale), weight).to(rows.dtype)


def _mean(rows: Tensor, layout: BatchLayout) -> Tensor:
    """Return the mean over the rows of each sentence, ``(B, C)``; 0 for one without any."""
    return layout.sums(rows) / layout.lengths.clamp(min=1).unsqueeze(1)
