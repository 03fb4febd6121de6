"""Base classes of the norms, and compositions of norms."""

import math
from typing import Any, ClassVar, Optional, Self

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.options import NormOptions
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["AffineNorm", "Composition", "Norm"]


class Norm(nn.Module):
    """Base of the norms that plans can name.

    A subclass has ``forward(x, tokens=None)`` and the attributes below. Its constructor takes the
    number of channels and the options; where it takes more, :meth:`build` hands it over.

    Attributes:
        name: in plans; the options are ``--norm-NAME-PARAMETER``.
        summary: what it normalises by, in one line.
        source: the paper that defines it.
        options_type: the dataclass of its parameters.
        leaks: why it may not stand in a causal decoder; empty where it may.
        options: its parameters.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    options_type: ClassVar[type[NormOptions]] = NormOptions
    leaks: ClassVar[str] = ""
    eps = math.nan  # torch's Transformer layers take layer norm's fast path where two are equal
    options: NormOptions = NormOptions()

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build the norm of a place, of which it needs the number of channels alone."""
        return cls(place.channels, options)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return ", ".join(f"{name}={value}" for name, value in vars(self.options).items())


class AffineNorm(Norm):
    """Base of the norms with a learnt gain and bias for every channel.

    Args:
        channels: number of channels C.
        options: its parameters; ``None`` = the defaults.

    Attributes:
        has_bias: whether there is a bias beside the gain.
        weight, bias: ``(C,)``.
    """

    has_bias: ClassVar[bool] = True

    def __init__(self, channels: int, options: Optional[NormOptions] = None) -> None:
        super().__init__()
        self.options = options or self.options_type()
        self.weight = nn.Parameter(torch.ones(channels))
        if self.has_bias:
            self.bias = nn.Parameter(torch.zeros(channels))

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{self.weight.numel()}, {super().extra_repr()}"


class Composition(nn.Sequential):
    """Norms applied one after the other."""

    eps = math.nan  # as of Norm

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Apply the norms to ``x: (..., C)``, first to last."""
        for norm in self:
            x = norm(x, tokens)
        return x

    def set_num_updates(self, num_updates: int) -> None:
        """Hand the number of updates to the norms that have schedules."""
        for norm in self:
            getattr(norm, "set_num_updates", lambda _: None)(num_updates)
