"""Callbacks, and the one mixin that runs them in any fairseq task."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from rbn_fairseq.checkpoints.mending import LAST
from rbn_fairseq.measuring.adapters import TaskAdapter
from rbn_fairseq.norms.moments import world_size
from rbn_fairseq.norms.options import check_values

__all__ = ["Callback", "Training", "WithCallbacks", "options_of", "with_options"]


@dataclass
class Training:
    """The training that callbacks belong to: everything that they may read of it.

    Attributes:
        cfg: fairseq's whole configuration.
        options: the task's part of it, with defaults for what an older checkpoint lacks.
        task: the task.
        model: the model that is trained, once built; ``None`` where checkpoints are only read.
        criterion: the criterion, once built.
        batches: fairseq's iterator over the epochs of the training set, once made.
        updates: number of updates made.
    """

    cfg: Any
    options: Any
    task: Any
    model: Optional[nn.Module] = None
    criterion: Any = None
    batches: Any = None
    updates: int = 0

    @property
    def adapter(self) -> TaskAdapter:
        """The adapter to the kind of task."""
        adapter: TaskAdapter = self.task.adapter
        return adapter

    @property
    def save_dir(self) -> Path:
        """Directory of checkpoints and measurements."""
        return Path(self.cfg.checkpoint.save_dir)

    @property
    def resumes(self) -> bool:
        """Whether it goes on from a checkpoint of its own directory."""
        last, chosen = self.save_dir / LAST, self.cfg.checkpoint.restore_file
        start = last if chosen == LAST else Path(chosen)
        return start.exists() and start.resolve().parent == last.resolve().parent

    @property
    def train_subset(self) -> str:
        """Name of the part of the data that is trained on."""
        return str(self.cfg.dataset.train_subset)


class Callback:
    """One concern of a training; every method does nothing unless a subclass overrides it.

    Methods run on every process, unless said otherwise.

    Args:
        training: the training around it.
    """

    #: Its options, which become those of the task; a field is named as on the command line.
    options: ClassVar[Optional[type[FairseqDataclass]]] = None

    def __init__(self, training: Training) -> None:
        self.training = training

    def check(self, model_cfg: Any) -> None:
        """Refuse options, before the model of a training is built."""

    def on_model(self, model: nn.Module) -> None:
        """Act on the model of a training once it is built, before an optimizer copies it."""

    def on_criterion(self, criterion: Any) -> None:
        """Act on the criterion once it is built; of a training, or to validate a checkpoint."""

    def on_batches(self, iterator: Any) -> None:
        """Act on fairseq's EpochBatchIterator over the training set, whenever it is asked for."""

    def on_epoch_begin(self, epoch: int, model: nn.Module) -> None:
        """Act before an epoch's first update; after a resume, also in the middle of the epoch."""

    def on_attempt(self, model: nn.Module) -> None:
        """Act before an update's first micro-batch; fairseq may drop the update and try again."""

    @contextmanager
    def step(self, sample: Any, model: nn.Module, update: int, dummy: bool) -> Iterator[None]:
        """Run around forward and backward of a micro-batch: a context manager that yields once.

        Exceptions pass through it.

        Args:
            sample: fairseq's batch.
            model: the model, wrapped where there are several processes.
            update: number of updates before this one.
            dummy: whether it only keeps step with processes that have data left.
        """
        yield

    def on_update(self) -> None:
        """Act after an update of the weights."""

    def on_validation(self) -> None:
        """Act before a validation, at the end of an epoch or within it."""

    def on_epoch_end(self, epoch: int, model: nn.Module) -> None:
        """Act before the validation that ends an epoch, or the training by ``--max-update``.

        That may be within an epoch, which ends again where the training is resumed.
        fairseq has no other sign of an epoch's end: without a validation
        (``--disable-validation``, ``--validate-interval``) this is not called.
        """

    def before_save(self) -> None:
        """Act before a checkpoint is written, also fairseq's ``crash.pt``; may come twice.

        Like ``state_dict`` on the process that writes alone.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs, of types that checkpoints may hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read what a checkpoint has of this callback, on every process."""


def options_of(callbacks: Sequence[type[Callback]]) -> tuple[type[FairseqDataclass], ...]:
    """Return the options of callbacks."""
    return tuple(callback.options for callback in callbacks if callback.options is not None)


def with_options(base: type[Any], callbacks: Sequence[type[Callback]]) -> type[Any]:
    """Return the configuration of a task, ``base``, with the options of callbacks."""
    name, text = f"{base.__name__}WithCallbacks", f"Options of {base.__name__} and of callbacks."
    return dataclass(type(name, (*options_of(callbacks), base), {"__doc__": text}))


def _loss_scale(optimizer: Any) -> float:
    """Return the loss scale of --amp, which drops after a skipped update; else 1."""
    scale: float = optimizer.scaler.get_scale() if isinstance(optimizer, AMPOptimizer) else 1.0
    return scale


class WithCallbacks(FairseqTask):
    """Mixin that runs callbacks; the first base of a task, before fairseq's own.

    Callbacks run in the order of ``callbacks``. Their state is one entry of a checkpoint, by the
    names of their classes; every process reads it.
    """

    #: In their order; no two of one name.
    callbacks: ClassVar[tuple[type[Callback], ...]] = ()
    #: The kind of task.
    adapter: ClassVar[TaskAdapter]

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        # fairseq keeps the task's configuration below the whole one; not every task keeps it.
        whole = cfg._get_root() if isinstance(cfg, DictConfig) else cfg
        self.training = Training(whole, cfg, self)
        self._running = {kind.__name__: kind(self.training) for kind in self.callbacks}

    @property
    def keeps_statistics(self) -> bool:
        """Whether callbacks keep running statistics in step with the updates; models ask."""
        return "RunningStatistics" in self._running

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._running.values():
            getattr(callback, hook)(*arguments)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model of a training, or that of a checkpoint.

        Raises:
            ValueError: if a callback refuses the training.
        """
        if from_checkpoint:
            loaded: nn.Module = super().build_model(cfg, from_checkpoint)
            return loaded
        for kind in options_of(self.callbacks):
            check_values(kind, self.training.options)
        self._call("check", cfg)
        self.training.model = super().build_model(cfg)
        self._call("on_model", self.training.model)
        return self.training.model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion.

        Raises:
            ValueError: if a callback refuses it.
        """
        base = super().build_criterion  # of some tasks it takes one argument
        if "from_checkpoint" in inspect.signature(base).parameters:
            # fairseq-validate does not say so, and options that are gone since would be refused.
            criterion = base(cfg, from_checkpoint or self.training.model is None)
        else:
            criterion = base(cfg)
        self.training.criterion = criterion
        self._call("on_criterion", criterion)
        return criterion

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator over a data set."""
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
        if dataset is self.datasets.get(self.training.train_subset):
            self.training.batches = iterator
            self._call("on_batches", iterator)
        return iterator

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Begin an epoch, or resume within it."""
        super().begin_epoch(epoch, model)
        self._call("on_epoch_begin", epoch, model)

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
        """Do forward and backward of a micro-batch.

        Raises:
            ValueError: if one of several processes has no memory for it.
        """
        self.training.updates = update_num
        # fairseq clears the gradients before the first micro-batch of an update, and only there.
        if all(weight.grad is None for weight in model.parameters()):
            self._call("on_attempt", model)
        try:
            with ExitStack() as around:
                for callback in self._running.values():
                    around.enter_context(callback.step(sample, model, update_num, ignore_grad))
                return super().train_step(
                    sample,
                    model,
                    criterion,
                    optimizer,
                    update_num,
                    ignore_grad=ignore_grad,
                    **kwargs,
                )
        except RuntimeError as error:
            # A process alone leaves the batch out. Others wait for this one's gradients and logs:
            # fairseq gets over it only by legacy_ddp in the last micro-batch of several.
            if "out of memory" in str(error) and world_size(sync=True) > 1:
                raise ValueError(
                    "No memory for a batch on this process, and the others wait for it. Lower "
                    "--max-tokens (--update-freq makes up for it)."
                ) from error
            raise

    def optimizer_step(self, optimizer: Any, model: nn.Module, update_num: int) -> None:
        """Update the weights, unless the loss scale overflowed."""
        before = _loss_scale(optimizer)
        super().optimizer_step(optimizer, model, update_num)
        if _loss_scale(optimizer) >= before:
            self.training.updates = update_num + 1
            self._call("on_update")

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Begin a validation; fairseq has no other sign of the end of an epoch."""
        super().begin_valid_epoch(epoch, model)
        self._call("on_validation")
        most = self.training.cfg.optimization.max_update or math.inf
        if self.training.batches.end_of_epoch() or self.training.updates >= most:
            self._call("on_epoch_end", epoch, model)

    def state_dict(self) -> dict[str, Any]:
        """Return the task's part of a checkpoint.

        fairseq has collected the model's part by then, but not as copies.
        """
        self._call("before_save")
        state: dict[str, Any] = super().state_dict()
        return state

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps for every process, that of a base beside ours."""
        inherited: dict[str, Any] = getattr(super(), "get_checkpoint_dict", dict)()
        name = type(self).__name__  # by which fairseq looks for it
        self._call("before_save")
        states = {kind: callback.state_dict() for kind, callback in self._running.items()}
        ours = {"updates": self.training.updates, "callbacks": states}
        return {**inherited, name: {**inherited.get(name, {}), **ours}}

    def set_checkpoint_dict(self, state: Mapping[str, Any]) -> None:
        """Read what a checkpoint keeps for every process."""
        getattr(super(), "set_checkpoint_dict", lambda state: None)(state)
        self.training.updates = state.get("updates", 0)
        states = state.get("callbacks", {})
        for kind, callback in self._running.items():
            if kind in states:
                callback.load_state_dict(states[kind])
