"""Batches from which no good statistics come: told once, with layer and update."""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor, nn

from rbn_fairseq.norms import PopulationNorm, Record, record_moments
from rbn_fairseq.norms.moments import Moments

__all__ = ["TroubleConfig", "TroubleWatch"]

logger = logging.getLogger(__name__)

_KINDS = (
    "the batch statistics are not finite; the running statistics stay as they were",
    "the batch has fewer than two real tokens; without any, it is normalised by the running "
    "statistics, with one, every channel's variance is 0",
    "a channel is the same in all real tokens of the batch; its variance is 0, and eps alone "
    "bounds its gradient",
)


@dataclass
class TroubleConfig(FairseqDataclass):
    """What the watch knows of the training around it."""

    log_interval: int = II("common.log_interval")


def _troubles(batches: list[Moments]) -> Tensor:
    """Tell, for batches of equally many channels, which kinds they show: ``(batches, kinds)``."""
    mean, var, count = (
        torch.stack(values) for values in zip(*((b.mean, b.var, b.n) for b in batches), strict=True)
    )
    finite = (mean.isfinite() & var.isfinite()).all(1)
    few = count < 2
    return torch.stack([~finite, few, finite & ~few & (var == 0).any(1)], 1)


class TroubleWatch:
    """Mixin for a fairseq task; put it before the task among the bases.

    Watches the batch statistics of every norm that has running ones, without waiting for the GPU,
    and warns, once for each kind of trouble, before a validation, a checkpoint (also fairseq's
    ``crash.pt``), or every --log-interval updates. Updates are counted as in fairseq's log: the
    first is 1.
    """

    cfg: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By norm: its name, and the update at which each kind was seen first, -1 = never.
        self._names: dict[nn.Module, str] = {}
        self._first: dict[nn.Module, Tensor] = {}
        self._told: set[int] = set()

    def train_step(
        self,
        sample: Any,
        model: nn.Module,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Do fairseq's step, and watch; dummy batches are none of its business."""
        with record_moments() as records:
            result = super().train_step(  # type: ignore[misc]
                sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **kwargs
            )
        update = update_num + 1  # the one that this batch has a part in
        if not ignore_grad:
            self._note(records, update)
        if not self._names:
            self._names = {
                part: re.sub(r"^(module\.)+", "", name)  # of wrappers
                for name, part in model.named_modules()
                if isinstance(part, PopulationNorm)
            }
        if update % self.cfg.log_interval == 0:
            self._tell()
        return result

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

    def _tell(self) -> None:
        if not self._first or len(self._told) == len(_KINDS):
            return
        seen = {self._names[norm]: first.tolist() for norm, first in self._first.items()}
        for kind, text in enumerate(_KINDS):
            layers = {name: first[kind] for name, first in seen.items() if first[kind] >= 0}
            if not layers or kind in self._told:
                continue
            self._told.add(kind)
            name = min(layers, key=layers.__getitem__)
            others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
            logger.warning("%s%s, update %d: %s (said once)", name, others, layers[name], text)

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Tell what has been seen."""
        self._tell()
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return the task's part of a checkpoint; tell what has been seen."""
        self._tell()
        return super().state_dict()  # type: ignore[misc,no-any-return]
