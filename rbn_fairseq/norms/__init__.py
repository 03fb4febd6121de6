"""Normalisation layers: pure torch, usable without fairseq.

Every norm is a module with ``forward(x, tokens=None)``: ``x`` are rows ``(N, C)`` of real tokens,
``tokens`` the batch's :class:`BatchLayout`, as in the model; or ``x: (T, B, C)`` or ``(..., C)`` of
others, which may be padded, and ``tokens`` the batch's :class:`ValidTokens`.

Order of a forward of batch norm in training:

1. ``tokens.on_rows`` packs the real tokens of a padded ``x`` into rows;
2. ``moments.batch_moments`` takes mean and variance of the rows, in fp32 or better, over all
   processes where they share them;
3. ``normalise.normalise`` maps the rows; its backward has the gradients of y, mean and variance;
4. ``population`` moves towards the batch, in place and in fp32, unless it is frozen, or the batch
   empty or not finite;
5. recorders of ``scope`` get the moments, and the gap to the population before and after.

In evaluation there is one ``normalise.multiply_add``, by scale and shift of the population.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from torch import nn

from rbn_fairseq.norms.batch import BatchNorm, BatchNormOptions
from rbn_fairseq.norms.by_length import PopulationByLength
from rbn_fairseq.norms.fixed import (
    Affine,
    DynamicErf,
    DynamicErfOptions,
    DynamicTanh,
    DynamicTanhOptions,
    NoNorm,
)
from rbn_fairseq.norms.group import GroupNorm, GroupScale
from rbn_fairseq.norms.instance import InstanceNorm
from rbn_fairseq.norms.layer import LayerNorm, LayerNormOptions
from rbn_fairseq.norms.lengths import LengthBins, cut_lengths
from rbn_fairseq.norms.mabn import MovingAverageBatchNorm, MovingAverageBatchNormOptions
from rbn_fairseq.norms.norm import AffineNorm, Composition, Norm
from rbn_fairseq.norms.normalise import standard_deviation
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.plan import EMBEDDING, NormPlace, NormPlan, parse_norms
from rbn_fairseq.norms.population import Population, split_statistics
from rbn_fairseq.norms.population_norm import PopulationNorm
from rbn_fairseq.norms.power import PowerNorm, PowerNormOptions
from rbn_fairseq.norms.renorm import BatchRenorm, BatchRenormOptions
from rbn_fairseq.norms.repbn import RepBatchNorm, RepBatchNormOptions
from rbn_fairseq.norms.rms import PartialRMSNorm, RMSNorm
from rbn_fairseq.norms.scale import ScaleNorm, ScaleNormOptions
from rbn_fairseq.norms.scope import (
    Gap,
    Record,
    dummy_batch,
    freeze_statistics,
    record_gaps,
    record_moments,
)
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, ValidTokens, lay_out
from rbn_fairseq.norms.unified import UnifiedNorm, UnifiedNormOptions

__all__ = [
    # the norms, and the parameters of each
    "NORMS", "Affine", "BatchNorm", "BatchNormOptions", "BatchRenorm", "BatchRenormOptions",
    "DynamicErf", "DynamicErfOptions", "DynamicTanh", "DynamicTanhOptions", "GroupNorm",
    "GroupScale", "InstanceNorm", "LayerNorm", "LayerNormOptions", "MovingAverageBatchNorm",
    "MovingAverageBatchNormOptions", "NoNorm", "PartialRMSNorm", "PowerNorm", "PowerNormOptions",
    "RMSNorm", "RepBatchNorm", "RepBatchNormOptions", "ScaleNorm", "ScaleNormOptions",
    "UnifiedNorm", "UnifiedNormOptions",
    # bases, and norms of one's own
    "AffineNorm", "Composition", "Norm", "NormOptions", "PopulationNorm", "on_registration",
    "option", "register_norm",
    # plans
    "EMBEDDING", "NormPlace", "NormPlan", "build_norm", "parse_norms",
    # tokens
    "BatchLayout", "Tokens", "ValidTokens", "lay_out",
    # running statistics
    "LengthBins", "Population", "PopulationByLength", "cut_lengths", "has_batch_norm",
    "has_population_norm", "populations_by_length", "split_statistics", "standard_deviation",
    # settings of what runs inside a `with` block
    "Gap", "Record", "dummy_batch", "freeze_statistics", "record_gaps", "record_moments",
]  # fmt: skip

#: The norms that plans can name.
NORMS: dict[str, type[Norm]] = {
    norm.name: norm
    for norm in (
        LayerNorm,
        BatchNorm,
        BatchRenorm,
        RepBatchNorm,
        PowerNorm,
        MovingAverageBatchNorm,
        UnifiedNorm,
        RMSNorm,
        PartialRMSNorm,
        ScaleNorm,
        GroupNorm,
        GroupScale,
        InstanceNorm,
        DynamicTanh,
        DynamicErf,
        Affine,
        NoNorm,
    )
}

_FOLLOWERS: list[Callable[[], None]] = []
_AnyNorm = TypeVar("_AnyNorm", bound=type[Norm])


def on_registration(follow: Callable[[], None]) -> None:
    """Call a function after every norm that is registered from now on."""
    _FOLLOWERS.append(follow)


def register_norm(norm: _AnyNorm) -> _AnyNorm:
    """Make a norm known: plans can name it, and its parameters are options of the model.

    Decorates the class, a :class:`Norm`.

    Raises:
        ValueError: if it is no :class:`Norm` with a name that a plan can hold and a summary,
            another norm has the name, or its options are not a :class:`NormOptions` of that name,
            or begin as True.
    """
    if not (issubclass(norm, Norm) and hasattr(norm, "name") and hasattr(norm, "summary")):
        raise ValueError(
            f"register_norm: `{norm.__name__}` must be a Norm, with a `name` and a `summary`."
        )
    name, options = norm.name, norm.options_type
    if not re.fullmatch("[a-z_]+", name):
        raise ValueError(f"register_norm: `{name}` must be lower-case letters and `_`.")
    if name in NORMS:
        raise ValueError(f"register_norm: there is a norm `{name}` already. Choose another name.")
    fits = options is NormOptions or (
        issubclass(options, NormOptions)
        and options.norm == name
        and "__dataclass_fields__" in vars(options)
        and all("help" in field.metadata for field in fields(options))
    )
    if not fits:
        raise ValueError(
            f"register_norm: the `options_type` of `{name}` must be a dataclass that is a "
            f'NormOptions, made with norm="{name}", and its fields with option().'
        )
    for field in fields(options):
        if field.default is True:
            raise ValueError(
                f"register_norm: `{field.name}` of `{name}` begins as True, and its flag would "
                "turn it off, which nobody expects. Name the opposite, and let it begin as False."
            )
    NORMS[name] = norm
    for follow in _FOLLOWERS:
        follow()
    return norm


def build_norm(names: Sequence[str], place: NormPlace, options: Mapping[str, Any]) -> nn.Module:
    """Build the norm of one place.

    Args:
        names: registered names; more than one make a composition, applied left to right.
        place: what the norms need to know of it.
        options: parameters by norm name, instances of ``NORMS[name].options_type``; defaults where
            a name is missing.

    Raises:
        ValueError: if a norm's options do not go with the place.
    """
    norms = [
        NORMS[name].build(place, options.get(name) or NORMS[name].options_type()) for name in names
    ]
    return norms[0] if len(norms) == 1 else Composition(*norms)


def has_batch_norm(module: nn.Module) -> bool:
    """Tell whether a module holds any batch norm."""
    return any(isinstance(part, BatchNorm) for part in module.modules())


def has_population_norm(module: nn.Module) -> bool:
    """Tell whether a module holds any norm with running statistics."""
    return any(isinstance(part, PopulationNorm) for part in module.modules())


def populations_by_length(module: nn.Module) -> list[PopulationByLength]:
    """Return the running statistics by sentence length that a module holds."""
    return [part for part in module.modules() if isinstance(part, PopulationByLength)]
