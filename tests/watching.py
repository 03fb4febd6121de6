"""What a training in this process did, in order; and trainings whose updates fail on purpose."""

import itertools
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import torch
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from rbn_fairseq.norms import BatchNorm, record_moments

MOMENTUM = 0.05


class Training:
    """The batch moments of every attempt at an update, and which were made.

    Attributes:
        attempts: for every attempt at an update, the moments of its micro-batches, each by layer.
        made: for every attempt, whether the number of updates went up.
    """

    def __init__(self):
        self.attempts, self.made = [], []

    def statistics(self, averaged=False):
        """Fold the batches of the updates that were made: {layer: (mean, var)}, float64.

        Micro-batches one after the other, or averaged, as if each were another process's.
        """
        stats = {}
        for batches, made in zip(self.attempts, self.made, strict=True):
            if averaged:
                batches = [
                    {
                        name: tuple(
                            sum(b[name][kind] for b in batches) / len(batches) for kind in (0, 1)
                        )
                        for name in batches[0]
                    }
                ]
            for moments in batches if made else ():
                for name, (mean, var) in moments.items():
                    old = stats.get(name, (torch.zeros_like(mean), torch.ones_like(var)))
                    stats[name] = tuple(
                        (1 - MOMENTUM) * was + MOMENTUM * new
                        for was, new in zip(old, (mean, var), strict=True)
                    )
        return stats


@contextmanager
def watching():
    """Note what the trainer attempts; spoil nothing."""
    seen = Training()
    step, update = TranslationTask.train_step, Trainer.set_num_updates
    zero_grad = Trainer.zero_grad

    def train_step(self, sample, model, *args, **kwargs):
        names = {module: name for name, module in model.named_modules()}
        kinds = {norm.population.running_var.dtype for norm in names if isinstance(norm, BatchNorm)}
        assert kinds == {torch.float32}
        with record_moments() as records:
            try:
                return step(self, sample, model, *args, **kwargs)
            finally:
                seen.attempts[-1].append(
                    {names[norm]: (m.mean.double(), m.var.double()) for norm, m, *_ in records}
                )

    def cleared(self):
        zero_grad(self)
        if seen.attempts and not seen.attempts[-1]:
            return  # cleared twice
        seen.attempts.append([])
        seen.made.append(False)

    def set_num_updates(self, number):
        update(self, number)
        if seen.made:
            seen.made[-1] = True

    with ExitStack() as stack:
        for owner, name, function in (
            (TranslationTask, "train_step", train_step),
            (Trainer, "zero_grad", cleared),
            (Trainer, "set_num_updates", set_num_updates),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        yield seen


@contextmanager
def overflowing(attempts):
    """Make the gradient infinite at these attempts at an update, counted from 1."""
    numbers = itertools.count(1)
    clip = Trainer.clip_grad_norm

    def clip_grad_norm(self, *args):
        if next(numbers) in attempts:
            next(self.model.parameters()).grad.fill_(torch.inf)
        return clip(self, *args)

    with mock.patch.object(Trainer, "clip_grad_norm", clip_grad_norm):
        yield


@contextmanager
def amp_on_cpu():
    """--amp with autocast and loss scaling as on a GPU; the CPU computes in bf16."""
    scaler = partial(torch.amp.GradScaler, "cpu")
    cast = partial(torch.autocast, "cpu", torch.bfloat16)
    with (
        mock.patch.object(torch.cuda.amp, "GradScaler", scaler),
        mock.patch.object(torch.cuda.amp, "autocast", cast),
    ):
        yield
