"""Recalibration, against the statistics of the raw tokens."""

import pytest
import torch
from torch import nn

import oracles
from rbn_fairseq.diagnostics import ESTIMATES, collect_moments, recalibrate
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    MovingAverageBatchNorm,
    PowerNorm,
    UnifiedNorm,
)


class Network(nn.Module):
    """A batch norm, dropout and another batch norm, which may be skipped."""

    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.second = BatchNorm(3), nn.Dropout(0.5), BatchNorm(3)

    def forward(self, x, skip=False):
        x = self.dropout(self.first(x))
        return x if skip else self.second(x)


def forward(model, batch):
    return model(batch)


def make_batches(sizes=(7, 2, 30)):
    return [
        5 + torch.randn(3) + (1 + index) * torch.randn(size, 3, dtype=torch.double)
        for index, size in enumerate(sizes)
    ]


def estimates_by_hand(batches, estimate):
    if estimate == "pooled":
        return oracles.moments(torch.cat(batches))
    moments = [oracles.moments(batch) for batch in batches]
    return tuple(sum(parts) / len(batches) for parts in zip(*moments, strict=True))


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("momentum", [0.05, 1.0])
def test_running_statistics_become_the_estimates(estimate, momentum):
    norm = BatchNorm(3, BatchNormOptions(momentum)).double()
    batches = make_batches()
    addresses = [buffer.data_ptr() for buffer in norm.buffers()]
    for _ in range(2):  # it starts from nothing that was there before
        recalibrate(norm, batches, forward, estimate)
        expected = estimates_by_hand(batches, estimate)
        for buffer, value in zip(norm.buffers(), expected, strict=True):
            torch.testing.assert_close(buffer, value)  # fp64 rounding
    assert [buffer.data_ptr() for buffer in norm.buffers()] == addresses


@pytest.mark.parametrize("kind", [PowerNorm, MovingAverageBatchNorm, UnifiedNorm])
@pytest.mark.parametrize("estimate", ESTIMATES)
def test_quadratic_means(kind, estimate):
    norm, batches = kind(3).double(), make_batches()
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    recalibrate(norm, batches, forward, estimate)
    if estimate == "pooled":
        expected = torch.cat(batches).square().mean(0)
    else:
        expected = sum(batch.square().mean(0) for batch in batches) / len(batches)
    for name, buffer in norm.named_buffers():
        wanted = expected if name == "population.running_square" else before[name]
        torch.testing.assert_close(buffer, wanted)


def with_bias(value):
    model = Network().double()
    nn.init.constant_(model.first.bias, value)  # the second norm's input
    return model


def skip_second(model, batch):
    return model(batch, skip=True)


REFUSED = {
    "no norm": (nn.LayerNorm(3), {}, "no norm with running statistics"),
    "no batches": (Network().double(), {"batches": []}, "No token reached the norm `first`"),
    "an unreached norm": (
        Network().double(), {"forward": skip_second}, "No token reached the norm `second`"
    ),
    "NaN": (with_bias(torch.nan), {}, "`second` are not finite"),
    "infinite": (with_bias(torch.inf), {}, "`second` are not finite"),
    "estimate": (Network().double(), {"estimate": "running"}, "unknown estimate `running`"),
}  # fmt: skip


@pytest.mark.parametrize("model, options, message", REFUSED.values(), ids=REFUSED)
def test_a_refusal_leaves_all_statistics_alone(model, options, message):
    before = [buffer.clone() for buffer in model.buffers()]
    with pytest.raises(ValueError, match=message):
        recalibrate(model, **{"batches": make_batches(), "forward": forward} | options)
    assert all(map(torch.equal, model.buffers(), before))


def test_with_dropout_they_are_the_mean_of_what_training_saw():
    model, batches = Network().double().train(), make_batches()
    norms = model.first, model.second
    for norm in norms:
        norm.population.momentum = 1.0
    torch.manual_seed(3)
    seen = []
    for batch in batches:
        model(batch)
        seen.append([[part.clone() for part in norm.population.get()] for norm in norms])
    torch.manual_seed(3)
    model.eval()
    recalibrate(model, batches, forward, dropout=True)
    for norm, statistics in zip(norms, zip(*seen, strict=True), strict=True):
        for found, parts in zip(norm.population.get(), zip(*statistics, strict=True), strict=True):
            torch.testing.assert_close(found, sum(parts) / 3)  # fp64 rounding
    assert not model.training
    without = Network().double()
    recalibrate(without, batches, forward)
    assert (model.second.population.running_var > 1.3 * without.second.population.running_var).all()


def test_torchs_norms_are_recalibrated_with_ours():
    model = nn.Sequential(nn.Linear(3, 3), BatchNorm(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = model.double()
    batches = [torch.randn(8, 3, dtype=torch.double) for _ in range(4)]
    recalibrate(model, batches)
    layers = collect_moments(model, batches)
    for norm, (mean, var) in (("1", model[1].population.get()),
                              ("3", (model[3].running_mean, model[3].running_var))):  # fmt: skip
        torch.testing.assert_close(mean.double(), layers[norm].mean.mean(0), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(var.double(), layers[norm].var.mean(0), rtol=1e-6, atol=1e-6)
