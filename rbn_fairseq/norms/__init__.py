"""Normalisation layers: pure torch, usable without fairseq.

Every norm is a module with ``forward(x, tokens=None)``: ``x`` are rows ``(N, C)`` of real tokens,
``tokens`` the batch's :class:`BatchLayout`, as in the model; or ``x: (T, B, C)`` or ``(..., C)`` of
others, which may be padded, and ``tokens`` the batch's :class:`ValidTokens`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Optional, get_type_hints

from torch import Tensor, nn

from rbn_fairseq.norms.affine import Affine, AffineOptions
from rbn_fairseq.norms.batch import BatchNorm, BatchNormOptions
from rbn_fairseq.norms.by_length import LengthBatchNorm
from rbn_fairseq.norms.dyt import DynamicTanh, DynamicTanhOptions
from rbn_fairseq.norms.group import GroupNorm, GroupNormOptions
from rbn_fairseq.norms.groupscale import GroupScale, GroupScaleOptions
from rbn_fairseq.norms.instance import InstanceNorm, InstanceNormOptions
from rbn_fairseq.norms.layer import LayerNorm, LayerNormOptions
from rbn_fairseq.norms.length_statistics import LengthStatistics
from rbn_fairseq.norms.lengths import LengthBins, cut_lengths
from rbn_fairseq.norms.mabn import MovingAverageBatchNorm, MovingAverageBatchNormOptions
from rbn_fairseq.norms.none import NoNorm, NoNormOptions
from rbn_fairseq.norms.place import NormPlace
from rbn_fairseq.norms.plan import NormPlan, parse_norms
from rbn_fairseq.norms.population import PopulationNorm
from rbn_fairseq.norms.power import PowerNorm, PowerNormOptions
from rbn_fairseq.norms.prms import PartialRMSNorm, PartialRMSNormOptions
from rbn_fairseq.norms.renorm import BatchRenorm, BatchRenormOptions
from rbn_fairseq.norms.rms import RMSNorm, RMSNormOptions
from rbn_fairseq.norms.scope import (
    Gap,
    Record,
    dummy_batch,
    freeze_statistics,
    record_gaps,
    record_moments,
)
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, ValidTokens, lay_out

__all__ = [
    "NORMS",
    "Affine",
    "AffineOptions",
    "BatchLayout",
    "BatchNorm",
    "BatchNormOptions",
    "BatchRenorm",
    "BatchRenormOptions",
    "Composition",
    "DynamicTanh",
    "DynamicTanhOptions",
    "Gap",
    "GroupNorm",
    "GroupNormOptions",
    "GroupScale",
    "GroupScaleOptions",
    "InstanceNorm",
    "InstanceNormOptions",
    "LayerNorm",
    "LayerNormOptions",
    "LengthBatchNorm",
    "LengthBins",
    "LengthStatistics",
    "MovingAverageBatchNorm",
    "MovingAverageBatchNormOptions",
    "NoNorm",
    "NoNormOptions",
    "NormEntry",
    "NormPlace",
    "NormPlan",
    "PartialRMSNorm",
    "PartialRMSNormOptions",
    "PopulationNorm",
    "PowerNorm",
    "PowerNormOptions",
    "RMSNorm",
    "RMSNormOptions",
    "Record",
    "Tokens",
    "ValidTokens",
    "build_norm",
    "cut_lengths",
    "dummy_batch",
    "freeze_statistics",
    "has_batch_norm",
    "has_population_norm",
    "lay_out",
    "on_registration",
    "parse_norms",
    "record_gaps",
    "record_moments",
    "register_norm",
]


@dataclass(frozen=True)
class NormEntry:
    """A norm that plans can name.

    Attributes:
        build: ``(place, options) -> module``, ``place`` a :class:`NormPlace`.
        options: the dataclass of its parameters.
        summary: what it does, in one line.
        source: the paper that defines it.
        leaks: why it may not stand in a causal decoder; empty where it may.
    """

    build: Callable[[NormPlace, Any], nn.Module]
    options: type
    summary: str
    source: str
    leaks: str = ""


NORMS: dict[str, NormEntry] = {
    "layer": NormEntry(
        lambda place, options: LayerNorm(place.channels, options),
        LayerNormOptions,
        "each token by the mean and variance of its channels",
        "Ba et al., 2016, Layer Normalization",
    ),
    "batch": NormEntry(
        lambda place, options: (BatchNorm if options.length_bins == 1 else LengthBatchNorm)(
            place.channels, options, place.sync
        ),
        BatchNormOptions,
        "each channel by its mean and variance over the batch's real tokens",
        "Ioffe and Szegedy, 2015, Batch Normalization",
    ),
    "renorm": NormEntry(
        lambda place, options: BatchRenorm(place.channels, options, place.sync),
        BatchRenormOptions,
        "as batch, and corrected to the running statistics in training, within limits",
        "Ioffe, 2017, Batch Renormalization",
    ),
    "power": NormEntry(
        lambda place, options: PowerNorm(place.channels, options, place.sync),
        PowerNormOptions,
        "each channel by a running quadratic mean; an approximate backward",
        "Shen et al., 2020, PowerNorm",
    ),
    "mabn": NormEntry(
        lambda place, options: MovingAverageBatchNorm(place.channels, options, place.sync),
        MovingAverageBatchNormOptions,
        "each channel by the quadratic mean of the last batches, also in the backward; centres "
        "the linear layers behind it",
        "Yan et al., 2020, Moving Average Batch Normalization",
    ),
    "rms": NormEntry(
        lambda place, options: RMSNorm(place.channels, options),
        RMSNormOptions,
        "each token by the root mean square of its channels",
        "Zhang and Sennrich, 2019, RMSNorm",
    ),
    "prms": NormEntry(
        lambda place, options: PartialRMSNorm(place.channels, options),
        PartialRMSNormOptions,
        "each token by the root mean square of its first channels",
        "Zhang and Sennrich, 2019, pRMSNorm",
    ),
    "group": NormEntry(
        lambda place, options: GroupNorm(place.channels, options, place.heads),
        GroupNormOptions,
        "each group of a token's channels by its mean and variance",
        "Wu and He, 2018, Group Normalization",
    ),
    "groupscale": NormEntry(
        lambda place, options: GroupScale(place.channels, options, place.heads),
        GroupScaleOptions,
        "each group of a token's channels by its root mean square, without gain or bias",
        "Shen et al., 2020, PowerNorm",
    ),
    "instance": NormEntry(
        lambda place, options: InstanceNorm(place.channels, options),
        InstanceNormOptions,
        "each channel by its mean and variance over the sentence's real tokens",
        "Ulyanov et al., 2016, Instance Normalization",
        leaks="its statistics are those of the whole sentence, so that in training a position "
        "sees later tokens, and in generation there is only one token to take them from",
    ),
    "dyt": NormEntry(
        lambda place, options: DynamicTanh(place.channels, options),
        DynamicTanhOptions,
        "nothing: a tanh with a learnt slope",
        "Zhu et al., 2025, Transformers without Normalization",
    ),
    "affine": NormEntry(
        lambda place, options: Affine(place.channels),
        AffineOptions,
        "nothing: the multiply-add that `rbn fold` leaves of a norm with running statistics; not "
        "for training",
        "no paper: what such a norm is in inference",
    ),
    "none": NormEntry(
        lambda place, options: NoNorm(),
        NoNormOptions,
        "nothing: the control of a comparison",
        "no paper: the identity",
    ),
}


_OPTION_TYPES = (bool, int, float, str, Optional[int], Optional[float], Optional[str])
_FOLLOWERS: list[Callable[[], None]] = []


def on_registration(follow: Callable[[], None]) -> None:
    """Call a function after every norm that is registered from now on."""
    _FOLLOWERS.append(follow)


def register_norm(name: str, entry: NormEntry) -> None:
    """Make a norm known: plans can name it, and its parameters are options of the model.

    Args:
        name: lower-case letters and ``_``; ``--norm-NAME-PARAMETER`` are its options.
        entry: how it is built, and what is told of it.

    Raises:
        ValueError: if a plan cannot hold the name or another norm has it, ``entry.options`` is
            not a dataclass whose fields have defaults and help texts, or a field is of a type that
            no option can have, or is called as an option that there is.
    """
    if not re.fullmatch("[a-z_]+", name):
        raise ValueError(f"register_norm: `{name}` must be lower-case letters and `_`.")
    if name in NORMS:
        raise ValueError(f"register_norm: there is a norm `{name}` already. Choose another name.")
    options = fields(entry.options) if is_dataclass(entry.options) else None
    if options is None or not all(it.metadata.get("help") for it in options):
        raise ValueError(
            f"register_norm: the options of `{name}` must be a dataclass, and every field have "
            'metadata={"help": ...}, which is what its flag\'s help says.'
        )
    kinds = get_type_hints(entry.options)
    for option in options:
        if option.default is MISSING:
            raise ValueError(f"register_norm: `{option.name}` of `{name}` needs a default value.")
        kind = kinds[option.name]
        if kind not in _OPTION_TYPES or isinstance(kind, UnionType):
            raise ValueError(
                f"register_norm: `{option.name}` of `{name}` is of type {kind}. It can be bool, "
                "int, float, str, or typing.Optional[...] of one of the last three (fairseq cannot "
                "read `int | None`)."
            )
    NORMS[name] = entry
    try:
        for follow in _FOLLOWERS:
            follow()
    except TypeError as error:  # Field name duplicated
        del NORMS[name]
        raise ValueError(f"register_norm: `{name}` cannot be added: {error}.") from error


class Composition(nn.Sequential):
    """Norms applied one after the other."""

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Apply the norms to ``x: (..., C)``, first to last."""
        for norm in self:
            x = norm(x, tokens)
        return x


def build_norm(names: Sequence[str], place: NormPlace, options: Mapping[str, Any]) -> nn.Module:
    """Build the norm of one place.

    Args:
        names: registered names; more than one make a composition, applied left to right.
        place: what the norms need to know of it.
        options: parameters by norm name, instances of ``NORMS[name].options``; defaults where
            a name is missing.

    Raises:
        ValueError: if a norm's options do not go with the place.
    """
    norms = []
    for name in names:
        entry = NORMS[name]
        norms.append(entry.build(place, options.get(name) or entry.options()))
    return norms[0] if len(norms) == 1 else Composition(*norms)


def has_batch_norm(module: nn.Module) -> bool:
    """Tell whether a module holds any batch norm."""
    return any(isinstance(part, BatchNorm) for part in module.modules())


def has_population_norm(module: nn.Module) -> bool:
    """Tell whether a module holds any norm with running statistics."""
    return any(isinstance(part, PopulationNorm) for part in module.modules())
