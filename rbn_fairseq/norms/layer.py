"""Layer normalisation, by torch."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor, nn

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["LayerNorm", "LayerNormOptions"]


@dataclass(frozen=True)
class LayerNormOptions(NormOptions, norm="layer"):
    """Parameters of ``layer``."""

    eps: float = option(1e-5, "added to the variance", range="(0, inf)")


class LayerNorm(Norm, nn.LayerNorm):
    """Layer norm (Ba et al., 2016): each token by the mean and biased variance of its channels."""

    name = "layer"
    summary = "each token by the mean and variance of its channels"
    source = "Ba et al., 2016, Layer Normalization"
    options_type = LayerNormOptions

    def __init__(self, channels: int, options: Optional[LayerNormOptions] = None) -> None:
        options = options or LayerNormOptions()
        super().__init__(channels, eps=options.eps)
        self.options = options

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return super().forward(x)
