"""Milliseconds of norms alone, called as an encoder calls them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.bench.machine import threads
from rbn_fairseq.bench.rounds import FLOOR, Row, milliseconds, summarise, take_turns
from rbn_fairseq.norms import (
    NORMS,
    BatchLayout,
    NormPlace,
    PopulationNorm,
    Tokens,
    build_norm,
    parse_norms,
)

__all__ = [
    "TORCH",
    "Activations",
    "Case",
    "Conditions",
    "NormStack",
    "fixed_case",
    "read_norms",
    "time_norms",
]

TORCH = "torch-batch"  # torch's own batch norm

_LENGTH = 32  # tokens of a sentence in a made-up batch, about those of a real one


@dataclass(frozen=True)
class Case:
    """Batches that norms are timed on.

    Attributes:
        name: of the case.
        batches: the number of tokens of each sentence, in the order of the rows.
    """

    name: str
    batches: Sequence[Sequence[int]]

    def layouts(self, device: str) -> Iterator[BatchLayout]:
        """Yield each batch's layout, which the model hands to its norms."""
        for lengths in self.batches:
            yield BatchLayout(torch.tensor(lengths, device=device), list(lengths))


def fixed_case(tokens: int, channels: int) -> Case:
    """Return one batch of ``tokens`` real tokens, in sentences of 32.

    Raises:
        ValueError: if there is no whole number of sentences.
    """
    if tokens % _LENGTH:
        raise ValueError(f"--tokens must be multiples of {_LENGTH}, but one is {tokens}.")
    return Case(f"{tokens}x{channels}", [[_LENGTH] * (tokens // _LENGTH)])


@dataclass(frozen=True)
class Conditions:
    """Conditions under which norms are timed.

    Attributes:
        norms: names of norms or compositions, that of layer norm first.
        channels: C.
        depth: norms one after another.
        rounds: that are counted.
        device: ``cpu`` or ``cuda``.
        dtype: of activations and weights, a name of torch.
        threads: of torch.
        training: forward and backward in training; otherwise forward in evaluation.
    """

    norms: Sequence[str]
    channels: int = 512
    depth: int = 12
    rounds: int = 20
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    training: bool = True


class TorchBatchNorm(nn.BatchNorm1d):
    """torch's own batch norm."""

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise rows ``x: (N, C)``."""
        return super().forward(x)


def read_norms(names: Sequence[str]) -> list[str]:
    """Return ``layer``, the reference, and the names in order.

    Raises:
        ValueError: for a name that is unknown; in compositions ``torch-batch`` is.
    """
    for name in names:
        parse_norms(name, NORMS if "+" in name else {*NORMS, TORCH}, "--norms")
    return list(dict.fromkeys(("layer", *names)))


class NormStack(nn.ModuleList):
    """Norms one after another, as those of an encoder's layers are."""

    def __init__(self, name: str, conditions: Conditions) -> None:
        def build() -> nn.Module:
            if name == TORCH:
                return TorchBatchNorm(conditions.channels)
            return build_norm(name.split("+"), NormPlace(conditions.channels, heads=8), {})

        super().__init__(build() for _ in range(conditions.depth))
        self.to(conditions.device, getattr(torch, conditions.dtype)).train(conditions.training)
        for part in () if conditions.training else self.modules():
            if isinstance(part, PopulationNorm):
                part.make_generation_fast_()  # as fairseq does before it generates

    def forward(self, x: Tensor, layout: BatchLayout) -> Tensor:
        """Normalise rows ``x: (N, C)``."""
        for norm in self:
            x = norm(x, layout)
        return x


class Activations:
    """Random activations and gradients of the batches of a case, in the same memory."""

    def __init__(self, case: Case, conditions: Conditions) -> None:
        self.conditions = conditions
        self.layouts = list(case.layouts(conditions.device))
        rows = max(layout.rows for layout in self.layouts)
        shape, dtype = (2, rows, conditions.channels), getattr(torch, conditions.dtype)
        self._memory = torch.randn(shape, device=conditions.device).to(dtype)
        # In training autograd keeps the outputs of all norms; otherwise two tensors take turns.
        outputs = conditions.depth if conditions.training else min(2, conditions.depth)
        self._copies = self._memory.new_zeros(outputs, *shape[1:])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, BatchLayout]]:
        """Yield x and its gradient ``(N, C)``, and their layout, batch by batch."""
        for layout in self.layouts:
            x, upstream = self._memory[:, : layout.rows]
            yield x.detach().requires_grad_(self.conditions.training), upstream, layout

    def run(self, stack: NormStack) -> None:
        """Run a stack on all batches, with its backward in training."""
        with torch.set_grad_enabled(self.conditions.training):
            for x, upstream, layout in self:
                y = stack(x, layout)
                if self.conditions.training:
                    inputs = [x, *stack.parameters()]
                    torch.autograd.grad(y, inputs, upstream, allow_unused=True)

    def copy(self) -> None:
        """Copy all batches, once for each norm of a stack, into as much memory as norms write."""
        with torch.no_grad():
            for source, _, _ in self:
                for norm in range(self.conditions.depth):
                    block = self._copies[norm % len(self._copies)]
                    source = block[: len(source)].copy_(source)


def _timed(action: Callable[[], None], device: str, scale: float) -> float:
    return milliseconds(action, device) * scale


def time_norms(case: Case, conditions: Conditions, label: str = "") -> list[Row]:
    """Time norms in turn on the batches of a case.

    A time is that of a norm on a batch's rows of real tokens: the mean over the norms of a stack
    and the batches.

    The floor is the time in which memory moves what must be moved: in training five tensors (x and
    y in the forward, x and both gradients in the backward), so 2.5 copies of a tensor of the same
    size; in evaluation one copy. Each copy reads the last one, as a norm reads the output of the
    norm before it, and writes memory of its own where norms keep their outputs. So the floor has
    the cache's speed only where norms can have it.
    """
    with threads(conditions.threads):
        activations = Activations(case, conditions)
        scale = 1 / (conditions.depth * len(case.batches))
        actions = {
            name: partial(
                _timed,
                partial(activations.run, NormStack(name, conditions)),
                conditions.device,
                scale,
            )
            for name in conditions.norms
        }
        copies = 2.5 if conditions.training else 1.0
        actions[FLOOR] = partial(_timed, activations.copy, conditions.device, copies * scale)
        rounds = take_turns(actions, conditions.rounds, label)
    return summarise(
        rounds,
        bench="norm" if conditions.training else "norm, evaluation",
        device=conditions.device,
        threads=conditions.threads,
        dtype=conditions.dtype,
        case=case.name,
        channels=conditions.channels,
        floor=f"{copies:g} copies of the activations, into as much memory as the norms write",
    )
