"""Layer normalisation, by torch."""

from dataclasses import dataclass, field
from typing import Optional

from torch import Tensor, nn

from rbn_fairseq.norms.checks import check_rules, positive
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["LayerNorm", "LayerNormOptions"]


@dataclass(frozen=True)
class LayerNormOptions:
    """Parameters of ``layer``.

    Raises:
        ValueError: if ``eps`` is not positive and finite.
    """

    eps: float = field(default=1e-5, metadata={"help": "added to the variance; positive"})

    def __post_init__(self) -> None:
        check_rules("layer", self, {"eps": positive(self.eps)})


class LayerNorm(nn.LayerNorm):
    """Layer norm (Ba et al., 2016): each token by the mean and biased variance of its channels.

    Args:
        channels: number of channels C.
        options: eps.
    """

    def __init__(self, channels: int, options: Optional[LayerNormOptions] = None) -> None:
        super().__init__(channels, eps=(options or LayerNormOptions()).eps)

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return super().forward(x)
