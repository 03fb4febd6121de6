"""Milliseconds of norms alone, called as an encoder calls them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rbn_fairseq.bench.cases import Case
from rbn_fairseq.bench.machine import threads
from rbn_fairseq.bench.rounds import milliseconds, take_turns
from rbn_fairseq.bench.rows import FLOOR, Row, summarise
from rbn_fairseq.norms import (
    NORMS,
    BatchLayout,
    NormPlace,
    PopulationNorm,
    Tokens,
    build_norm,
    parse_norms,
)
from rbn_fairseq.norms.moments import world_size

__all__ = ["TORCH", "Conditions", "NormStack", "read_norms", "time_norms"]

TORCH = "torch-batch"


@dataclass(frozen=True)
class Conditions:
    """How norms are timed.

    Attributes:
        norms: names of norms or compositions, that of layer norm first.
        channels: C.
        depth: norms one after another.
        rounds: that are counted.
        device: ``cpu`` or ``cuda``.
        dtype: of activations and weights, a name of torch.
        threads: of torch.
        training: forward and backward in training; otherwise forward in evaluation.
        sync: share statistics with the other processes.
    """

    norms: Sequence[str]
    channels: int = 512
    depth: int = 12
    rounds: int = 20
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    training: bool = True
    sync: bool = False


class TorchBatchNorm(nn.BatchNorm1d):
    """torch's own batch norm."""

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise rows ``x: (N, C)``."""
        return super().forward(x)


def read_norms(names: Sequence[str]) -> list[str]:
    """Return ``layer``, the reference, and the names in order.

    Raises:
        ValueError: for a name that is unknown, or a composition with ``torch-batch``.
    """
    for name in names:
        parts = parse_norms(name, {*NORMS, TORCH}, "--norms")
        if TORCH in parts and len(parts) > 1:
            raise ValueError(
                f"--norms: `{TORCH}` is torch's own module and takes no part in a composition, "
                f"but `{name}` has it. Take `batch`, or `{TORCH}` alone."
            )
    return list(dict.fromkeys(("layer", *names)))


class NormStack(nn.ModuleList):
    """Norms one after another, as those of an encoder's layers are."""

    def __init__(self, name: str, how: Conditions) -> None:
        place = NormPlace(how.channels, heads=8, sync=how.sync)

        def build() -> nn.Module:
            if name == TORCH:
                return TorchBatchNorm(how.channels)
            return build_norm(name.split("+"), place, {})

        super().__init__(build() for _ in range(how.depth))
        self.to(how.device, getattr(torch, how.dtype)).train(how.training)
        for part in () if how.training else self.modules():
            if isinstance(part, PopulationNorm):
                part.make_generation_fast_()  # as fairseq does before it generates

    def forward(self, x: Tensor, layout: BatchLayout) -> Tensor:
        """Normalise rows ``x: (N, C)``."""
        for norm in self:
            x = norm(x, layout)
        return x

    def backward(self, x: Tensor, y: Tensor, upstream: Tensor) -> None:
        """Compute the gradients of ``x`` and the weights, and let go of them."""
        torch.autograd.grad(y, [x, *self.parameters()], upstream, allow_unused=True)


class Activations:
    """Random activations and gradients of the batches of a case, in the same memory."""

    def __init__(self, case: Case, how: Conditions) -> None:
        self.how = how
        self.layouts = list(case.layouts(how.device))
        rows = max(layout.rows for layout in self.layouts)
        shape, dtype = (2, rows, how.channels), getattr(torch, how.dtype)
        self._memory = torch.randn(shape, device=how.device).to(dtype)
        # In training the outputs of a stack's norms are kept; otherwise two take turns.
        kept = how.depth if how.training else min(2, how.depth)
        self._copies = self._memory.new_zeros(kept, *shape[1:])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, BatchLayout]]:
        """Yield x and its gradient ``(N, C)``, and their layout, batch by batch."""
        for layout in self.layouts:
            x, upstream = self._memory[:, : layout.rows]
            yield x.detach().requires_grad_(self.how.training), upstream, layout

    def run(self, stack: NormStack) -> None:
        """Run a stack on all batches, with its backward in training."""
        with torch.set_grad_enabled(self.how.training):
            for x, upstream, layout in self:
                y = stack(x, layout)
                if self.how.training:
                    stack.backward(x, y, upstream)

    def copy(self) -> None:
        """Copy all batches, once for each norm of a stack, into as much memory as norms write."""
        with torch.no_grad():
            for source, _, _ in self:
                for norm in range(self.how.depth):
                    block = self._copies[norm % len(self._copies)]
                    source = block[: len(source)].copy_(source)


def _timed(action: Callable[[], None], how: Conditions, scale: float) -> float:
    if world_size(how.sync) > 1:
        dist.barrier()
    return milliseconds(action, how.device) * scale


def time_norms(case: Case, how: Conditions, label: str = "") -> list[Row]:
    """Time norms in turn on the batches of a case.

    A time is that of a norm on a batch's rows of real tokens: the mean over the norms of a stack
    and the batches.

    The floor is what memory takes to move what must be moved: in training five tensors (x and y
    in the forward, x and both gradients in the backward), so 2.5 copies of a tensor of the same
    size, in evaluation one copy. A copy is copied from the last, as a norm reads what the last
    one wrote, into memory of its own where norms keep what they write. So it is not the cache's
    speed that is measured where norms cannot have it.
    """
    with threads(how.threads):
        activations = Activations(case, how)
        scale = 1 / (how.depth * len(case.batches))
        actions = {
            name: partial(_timed, partial(activations.run, NormStack(name, how)), how, scale)
            for name in how.norms
        }
        copies = 2.5 if how.training else 1.0
        actions[FLOOR] = partial(_timed, activations.copy, how, copies * scale)
        rounds = take_turns(actions, how.rounds, label)
    return summarise(
        rounds,
        bench="norm" if how.training else "norm, evaluation",
        device=how.device,
        threads=how.threads,
        dtype=how.dtype,
        case=case.name,
        channels=how.channels,
        floor=f"{copies:g} copies of the activations, into as much memory as the norms write",
    )
