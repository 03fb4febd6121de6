"""Normalisation layers: pure torch, usable without fairseq.

Every norm is a module with ``forward(x, tokens=None)``: ``x: (T, B, C)`` or ``(..., C)``,
``tokens`` the batch's :class:`ValidTokens`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from torch import Tensor, nn

from rbn_fairseq.norms.batch import BatchNorm, BatchNormOptions
from rbn_fairseq.norms.layer import LayerNorm, LayerNormOptions
from rbn_fairseq.norms.plan import NormPlan, parse_norms
from rbn_fairseq.norms.scope import Gap, dummy_batch, freeze_statistics, record_gaps
from rbn_fairseq.norms.tokens import ValidTokens

__all__ = [
    "NORMS",
    "BatchNorm",
    "BatchNormOptions",
    "Composition",
    "Gap",
    "LayerNorm",
    "LayerNormOptions",
    "NormEntry",
    "NormPlan",
    "ValidTokens",
    "build_norm",
    "dummy_batch",
    "freeze_statistics",
    "has_batch_norm",
    "parse_norms",
    "record_gaps",
]


@dataclass(frozen=True)
class NormEntry:
    """A norm that plans can name.

    Attributes:
        build: ``(channels, options, sync) -> module``.
        options: the dataclass of its parameters.
        summary: what it does, in one line.
        source: the paper that defines it.
    """

    build: Callable[[int, Any, bool], nn.Module]
    options: type
    summary: str
    source: str


NORMS: dict[str, NormEntry] = {
    "layer": NormEntry(
        lambda channels, options, sync: LayerNorm(channels, options),
        LayerNormOptions,
        "each token by the mean and variance of its channels",
        "Ba et al., 2016, Layer Normalization",
    ),
    "batch": NormEntry(
        BatchNorm,
        BatchNormOptions,
        "each channel by its mean and variance over the batch's real tokens",
        "Ioffe and Szegedy, 2015, Batch Normalization",
    ),
}


class Composition(nn.Sequential):
    """Norms applied one after the other."""

    def forward(self, x: Tensor, tokens: Optional[ValidTokens] = None) -> Tensor:
        """Apply the norms to ``x: (..., C)``, first to last."""
        for norm in self:
            x = norm(x, tokens)
        return x


def build_norm(
    names: Sequence[str], channels: int, options: Mapping[str, Any], sync: bool = False
) -> nn.Module:
    """Build the norm of one place.

    Args:
        names: registered names; more than one make a composition, applied left to right.
        channels: number of channels C.
        options: parameters by norm name, instances of ``NORMS[name].options``; defaults where
            a name is missing.
        sync: let norms with batch statistics share them over all processes.
    """
    norms = []
    for name in names:
        entry = NORMS[name]
        norms.append(entry.build(channels, options.get(name) or entry.options(), sync))
    return norms[0] if len(norms) == 1 else Composition(*norms)


def has_batch_norm(module: nn.Module) -> bool:
    """Tell whether a module holds any batch norm."""
    return any(isinstance(part, BatchNorm) for part in module.modules())
