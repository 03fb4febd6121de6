"""No normalisation: the control."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor, nn

from rbn_fairseq.norms.tokens import Tokens

__all__ = ["NoNorm", "NoNormOptions"]


@dataclass(frozen=True)
class NoNormOptions:
    """``none`` has no parameters."""


class NoNorm(nn.Module):
    """The identity: what a model does without a norm in this place.

    No paper of its own. It is the control of a comparison, and lets a plan leave a site bare
    (``none@ffn:layer``). It has no parameters, not even a gain.
    """

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Return ``x: (..., C)`` itself; ``tokens`` is not read."""
        return x
