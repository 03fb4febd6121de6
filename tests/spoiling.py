"""Trainings whose updates fail on purpose."""

import itertools
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from fairseq.trainer import Trainer


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
