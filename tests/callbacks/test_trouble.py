"""Warnings of batches that give no good statistics."""

from unittest import mock

import pytest
import torch
from fairseq.tasks.translation import TranslationTask
from torch import nn

import runs
from rbn_fairseq.callbacks.trouble import Trouble
from rbn_fairseq.norms import BatchNorm, PowerNorm, ValidTokens
from trainings import task

NOT_FINITE, FEW, CONSTANT = "not finite", "fewer than two", "the same in all real tokens"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = BatchNorm(3), PowerNorm(5)

    def forward(self, x, y, tokens):
        return self.first(x, tokens), self.second(y, tokens)


class Watched:
    def __init__(self, log_interval=100):
        self.task = task(Trouble, common={"log_interval": log_interval})
        self.model = Model()

    def save(self):
        return self.task.state_dict()

    def validate(self):
        self.task.begin_valid_epoch(1, self.model)

    def step(self, update, change=lambda x, y: None, lengths=(4, 2), ignore_grad=False):
        x, y = torch.randn(4, 2, 3), torch.randn(4, 2, 5)
        change(x, y)
        tokens = ValidTokens(torch.arange(4).unsqueeze(1) < torch.tensor(lengths))
        return self.task.train_step((x, y, tokens), self.model, None, None, update - 1, ignore_grad)


def spoil(x, y):
    y[1, 0, 2] = torch.nan


def test_first_norm_and_update_are_named(caplog):
    watched = Watched()
    watched.step(1)
    watched.step(2, lengths=(1, 0))
    watched.step(3, spoil)
    watched.step(4, lambda x, y: (x[0, 0].fill_(torch.inf), spoil(x, y)))
    watched.step(5, lambda x, y: x[:, :, 1].fill_(2.0))
    assert not caplog.messages  # the GPU is not waited for
    watched.save()
    told = {m.split(":")[0]: m for m in caplog.messages}
    assert list(told) == [
        "second and 1 more, update 3", "first and 1 more, update 2",
        "first, update 5",
    ]  # fmt: skip
    for text, message in zip((NOT_FINITE, FEW, CONSTANT), caplog.messages, strict=True):
        assert text in message


def test_names_without_wrappers(caplog):
    watched = Watched(log_interval=1)
    for _ in range(2):  # each has what it wraps as `module`
        wrapper = nn.Module()
        wrapper.module, wrapper.forward = watched.model, watched.model.forward
        watched.model = wrapper
    watched.step(1, spoil)
    assert caplog.messages[0].startswith("second, update 1")


@pytest.mark.parametrize("tell", [lambda watched: watched.step(10), Watched.validate, Watched.save])
def test_each_kind_is_told_once(caplog, tell):
    watched = Watched(log_interval=10)
    watched.step(1, spoil)
    assert not caplog.messages
    tell(watched)
    assert len(caplog.messages) == 1
    watched.step(11, spoil)
    tell(watched)
    assert len(caplog.messages) == 1


def test_whatever_is_at_padding_or_in_a_dummy_batch_is_no_trouble(caplog):
    watched = Watched()
    watched.step(1, lambda x, y: (x[2:, 1].fill_(torch.nan), y[2:, 1].fill_(torch.inf)))
    watched.step(2, spoil, ignore_grad=True)
    watched.save()
    assert not caplog.messages


def test_dropped_layers_are_none(caplog):
    watched = Watched()
    watched.step(1)
    with mock.patch.object(Model, "forward", lambda self, x, y, tokens: self.first(x, tokens)):
        watched.step(2, lambda x, y: x.fill_(torch.nan))
    watched.save()
    assert [m.split(":")[0] for m in caplog.messages] == ["first, update 2"]


def test_fairseq_stops_and_the_layer_is_named(data_bin, tmp_path, caplog):
    """Activations that are NaN in one batch: fairseq's own error, our word on where it began."""
    step = TranslationTask.train_step

    def train_step(self, sample, model, criterion, optimizer, update_num, **kwargs):
        def nan(module, inputs, output):
            return output * torch.nan if update_num == 2 else None

        with model.encoder.layers[0].fc2.register_forward_hook(nan, prepend=True):
            return step(self, sample, model, criterion, optimizer, update_num, **kwargs)

    with (
        mock.patch.object(TranslationTask, "train_step", train_step),
        pytest.raises(FloatingPointError, match="Nan/Inf"),
    ):
        runs.train(data_bin, tmp_path, "--norm-encoder", "batch", "--max-update", 5, "--no-tid")
    told = [m for m in caplog.messages if "said once" in m]
    assert len(told) == 1 and NOT_FINITE in told[0]
    assert told[0].startswith("encoder.layers.0.final_layer_norm and 2 more, update 3:")
    # fairseq's search, forward and backward, to its end.
    found = [m for m in caplog.messages if m.startswith("NaN detected in output of ")]
    assert "output of encoder.layers.0.fc2," in found[0] and "forward" in found[0]
    assert "backward" in found[-1]
    assert any(m.startswith("Detected nan/inf grad norm") for m in caplog.messages)
