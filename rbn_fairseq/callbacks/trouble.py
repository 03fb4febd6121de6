"""Warns of batches with bad statistics, once for each kind, naming layer and update."""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rbn_fairseq.callbacks.base import Callback, Training
from rbn_fairseq.norms import PopulationNorm, Record, record_moments
from rbn_fairseq.norms.moments import Moments

__all__ = ["Trouble"]

logger = logging.getLogger(__name__)

_KINDS = (
    "the batch statistics are not finite; the running statistics stay as they were",
    "the batch has fewer than two real tokens; without any, it is normalised by the running "
    "statistics, with one, every channel's variance is 0",
    "a channel is the same in all real tokens of the batch; its variance is 0, and eps alone "
    "bounds its gradient",
)


def _troubles(batches: list[Moments]) -> Tensor:
    """Return which kinds of trouble each batch shows: ``(batches, kinds)``, bool."""
    mean, var, count = (
        torch.stack(values) for values in zip(*((b.mean, b.var, b.n) for b in batches), strict=True)
    )
    finite = (mean.isfinite() & var.isfinite()).all(1)
    few = count < 2
    return torch.stack([~finite, few, finite & ~few & (var == 0).any(1)], 1)


class Trouble(Callback):
    """Watches the batch statistics of every norm that has running ones, without waiting for a GPU.

    It warns, once for each kind of trouble, before a validation, a checkpoint (also fairseq's
    ``crash.pt``), or every --log-interval updates. Updates are counted as in fairseq's log: the
    first is 1.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        # By norm: its name, and the update at which each kind was seen first, -1 = never.
        self._names: dict[nn.Module, str] = {}
        self._first: dict[nn.Module, Tensor] = {}
        self._warned: set[int] = set()

    @contextmanager
    def step(self, sample: Any, model: nn.Module, update: int, dummy: bool) -> Iterator[None]:
        """Watch a micro-batch, unless it is a dummy."""
        with record_moments() as records:
            yield
        if not dummy:
            self._note(records, update + 1)
        if not self._names:
            self._names = {
                part: re.sub(r"^(module\.)+", "", name)  # of wrappers
                for name, part in model.named_modules()
                if isinstance(part, PopulationNorm)
            }
        if (update + 1) % self.training.cfg.common.log_interval == 0:
            self._warn()

    @torch.no_grad()
    def _note(self, records: Iterable[Record], update: int) -> None:
        alike = defaultdict(list)  # what can be stacked
        for norm, moments, *_ in records:
            alike[moments.mean.shape].append((norm, moments))
        for group in alike.values():
            troubles = _troubles([moments for _, moments in group])
            never = torch.full_like(troubles[0], -1, dtype=torch.long)
            first = torch.stack([self._first.get(norm, never) for norm, _ in group])
            first = torch.where(troubles & (first < 0), update, first)
            self._first.update((norm, row) for (norm, _), row in zip(group, first, strict=True))

    def _warn(self) -> None:
        """Warn of the troubles since the last check."""
        if not self._first or len(self._warned) == len(_KINDS):
            return
        seen = {self._names[norm]: first.tolist() for norm, first in self._first.items()}
        for kind, text in enumerate(_KINDS):
            layers = {name: first[kind] for name, first in seen.items() if first[kind] >= 0}
            if not layers or kind in self._warned:
                continue
            self._warned.add(kind)
            name = min(layers, key=layers.__getitem__)
            others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
            logger.warning("%s%s, update %d: %s (said once)", name, others, layers[name], text)

    on_validation = before_save = _warn
