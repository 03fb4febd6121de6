"""Base class of the norms, and compositions of norms."""

from typing import Any, ClassVar, Optional, Self

from torch import Tensor, nn

from rbn_fairseq.norms.options import NormOptions
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["Composition", "Norm"]


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
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    options_type: ClassVar[type[NormOptions]] = NormOptions
    leaks: ClassVar[str] = ""

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build the norm of a place."""
        return cls(place.channels, options)


class Composition(nn.Sequential):
    """Norms applied one after the other."""

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Apply the norms to ``x: (..., C)``, first to last."""
        for norm in self:
            x = norm(x, tokens)
        return x
