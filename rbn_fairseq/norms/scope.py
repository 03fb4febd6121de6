"""Recorders and settings that hold for every norm while a ``with`` block runs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Optional, TypeVar

from torch import Tensor, nn

from rbn_fairseq.norms.moments import Moments

__all__ = [
    "Gap", "Record", "dummy_batch", "freeze_statistics", "record_gaps", "record_moments",
    "repetition",
]  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """Batch statistics beside population statistics, for one batch norm in one forward.

    Attributes:
        norm: the batch norm.
        batch_mean, batch_var: ``(C,)``, of the valid tokens of the batch, variance biased; they
            carry the autograd graph.
        count: 0-dim, the number of those tokens.
        mean_before, var_before: ``(C,)``, the population statistics before this batch moved them.
        mean_after, var_after: ``(C,)``, the same afterwards.
        share: this process's part in a penalty on these batch statistics, see :class:`Moments`.
    """

    norm: nn.Module
    batch_mean: Tensor
    batch_var: Tensor
    count: Tensor
    mean_before: Tensor
    var_before: Tensor
    mean_after: Tensor
    var_after: Tensor
    share: Tensor | float


class Record(NamedTuple):
    """A batch's moments at one norm with running statistics, in one forward.

    Attributes:
        norm: a :class:`PopulationNorm` (diagnostics record torch's own norms, too).
        moments: of the batch; they carry no autograd graph. Those of a norm that divides by a
            quadratic mean are about zero: ``mean`` is 0, ``var`` the mean of squares.
        lengths: of the batch's sentences, ``(B,)``; ``None`` where they are not known.
    """

    norm: nn.Module
    moments: Moments
    lengths: Optional[Tensor]


_T = TypeVar("_T")

recorders: ContextVar[tuple[list[Gap], ...]] = ContextVar("recorders", default=())
moment_recorders: ContextVar[tuple[list[Record], ...]] = ContextVar("moment_recorders", default=())
frozen: ContextVar[bool] = ContextVar("frozen", default=False)
dummy: ContextVar[bool] = ContextVar("dummy", default=False)


@contextmanager
def _setting(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _record(variable: ContextVar[tuple[list[_T], ...]]) -> Iterator[list[_T]]:
    records: list[_T] = []
    with _setting(variable, (*variable.get(), records)):
        yield records


def record_gaps() -> AbstractContextManager[list[Gap]]:
    """Collect a ``Gap`` from every batch norm that runs in training mode inside the block.

    Forwards append in the order in which they run: several forwards, skipped layers and nested
    recorders (each gets every gap) need no care, and nothing stays on the modules. This and the
    blocks below hold for the thread that enters them; those of nn.DataParallel are others.
    """
    return _record(recorders)


def record_moments() -> AbstractContextManager[list[Record]]:
    """Collect the batch's moments from every norm with running statistics, likewise."""
    return _record(moment_recorders)


def freeze_statistics() -> AbstractContextManager[None]:
    """Leave population statistics as they are while the block runs.

    In training mode every norm then normalises by the batch's own statistics alone.
    """
    return _setting(frozen, True)


def dummy_batch() -> AbstractContextManager[None]:
    """Count no token of the block as one of the batch.

    For batches whose gradient is thrown away: they then move neither this process's population
    statistics nor, under synchronisation, the batch statistics of the others.
    """
    return _setting(dummy, True)


def repetition() -> AbstractContextManager[None]:
    """Return a context for repeating, later, a forward that is about to run.

    There norms see the tokens that they see now, also on the threads of torch's backward; they
    leave population statistics as they are and record nothing.
    """
    was_dummy = dummy.get()

    @contextmanager
    def repeat() -> Iterator[None]:
        with (
            _setting(dummy, was_dummy),
            _setting(frozen, True),
            _setting(recorders, ()),
            _setting(moment_recorders, ()),
        ):
            yield

    return repeat()
