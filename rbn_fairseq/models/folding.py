"""Norms with running statistics, folded into the linear layers that read them."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rbn_fairseq.models.linear import readers_of_norms, readers_of_stack
from rbn_fairseq.models.placements import HEADS
from rbn_fairseq.norms import EMBEDDING, Affine, Composition, NoNorm, NormPlan, PopulationNorm

__all__ = ["Folding", "fold_norms"]

_KEPT = (*HEADS, EMBEDDING)  # sites whose norms others read than linear layers


class Folding(NamedTuple):
    """Result of folding the norms of a model.

    Attributes:
        settings: the changed options of its configuration.
        vanished: names of the norms that a linear layer has taken in.
        left: names of the norms that are one multiply-add.
        by_length: names of the norms that stay, a look-up and one multiply-add a sentence.
    """

    settings: dict[str, str]
    vanished: list[str]
    left: list[str]
    by_length: list[str]


def _vanish(model: Any, side: str) -> bool:
    """Tell whether linear layers alone read what the norms in a stack's layers give.

    In Post-Norm and HybridNorm residuals do, too, and in Peri-LN they read norms of outputs.
    """
    before = getattr(model.cfg, side).normalize_before
    return before and model.cfg.norms.placement in ("standard", "sub")


def _readers(model: Any) -> dict[nn.Module, list[nn.Linear]]:
    """Return the norms whose output linear layers alone read, with these.

    The decoder's last one is read by the output projection, which has no bias and may be the
    embedding.
    """
    readers: dict[nn.Module, list[nn.Linear]] = {}
    for side in model.kind.sides:
        stack, behind = getattr(model, side), readers_of_stack(model, side)
        if _vanish(model, side):
            readers.update(readers_of_norms(stack, behind))
        elif stack.layer_norm is not None:
            readers[stack.layer_norm] = behind
    return {norm[-1] if isinstance(norm, Composition) else norm: readers[norm] for norm in readers}


def _take_in(linear: nn.Linear, scale: Tensor, shift: Tensor) -> None:
    """Let ``linear`` compute from x what it computed from ``scale x + shift``."""
    linear.bias += linear.weight @ shift
    linear.weight *= scale


def _rename(plan: str, running: set[str], vanish: bool) -> str:
    """Return a plan without norms that have running statistics."""
    rules = []
    for rule in NormPlan.parse(plan).rules:
        folded = ["affine" if name in running else name for name in rule.norms]
        if vanish and rule.site not in _KEPT and rule.norms[-1] in running:
            folded[-1] = "none"
        rules.append(replace(rule, norms=tuple(folded)))
    return str(NormPlan(tuple(rules)))


def _settings(model: Any) -> dict[str, str]:
    running = {
        part.name
        for part in model.modules()
        if isinstance(part, PopulationNorm) and not part.by_length
    }
    settings = {"norm_weight": "none"} if "encoder" in model.kind.sides else {}
    for side, stack in model.cfg.norms.stacks.items():
        settings[f"norm_{side}"] = _rename(stack.layers, running, _vanish(model, side))
        read = bool(readers_of_stack(model, side))
        settings[f"norm_{side}_final"] = _rename(stack.final, running, read)
    return settings


@torch.no_grad()
def fold_norms(model: Any) -> Folding:
    """Fold, in place, every norm with running statistics, as evaluation applies it.

    Such a norm is ``y = scale x + shift``. Where linear layers alone read it, as in Pre-Norm, each
    becomes ``W y + b = (W scale) x + (b + W shift)`` and the norm vanishes: of self-attention into
    the projections to queries, keys and values, of cross-attention into that to queries, of the
    feed-forward network into fc1, of sub-LN's second norms into the output projection and fc2,
    and the encoder's last into the keys and values of cross-attention. (The encoder's output is
    then another tensor than before.) Elsewhere it becomes one multiply-add, :class:`Affine`.
    Norms with bins of sentence lengths have a scale and shift for each sentence, and stay.
    Parametrised weights (``--norm-weight``, and those behind ``mabn``) become plain ones.
    """
    settings, readers = _settings(model), _readers(model)
    for part in list(model.modules()):
        if parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight")
    vanished, left, by_length = [], [], []
    for name, norm in list(model.named_modules()):
        if not isinstance(norm, PopulationNorm):
            continue
        if norm.by_length:
            by_length.append(name)
        else:
            scale, shift = norm.affine_map()
            linears = readers.get(norm, [])
            for linear in linears:
                _take_in(linear, scale, shift)
            if linears:
                vanished.append(name)
                model.set_submodule(name, NoNorm())
            else:
                left.append(name)
                model.set_submodule(name, Affine(len(scale)))
                norm = model.get_submodule(name)
                norm.scale, norm.shift = scale, shift
    return Folding(settings, vanished, left, by_length)
