"""torch's own batch norms: the same statistics as theirs, and nothing of them moved."""

import copy

import pytest
import torch
from torch import nn

from rbn_fairseq.diagnostics import batch_norms, collect_moments, measure_tid, tid
from rbn_fairseq.norms import BatchNorm

KINDS = {
    "1d": (nn.BatchNorm1d, (7, 3)),
    "1d with length": (nn.BatchNorm1d, (5, 3, 4)),
    "2d": (nn.BatchNorm2d, (5, 3, 4, 2)),
    "3d": (nn.BatchNorm3d, (5, 3, 1, 2, 2)),
    "sync": (nn.SyncBatchNorm, (5, 3, 4)),
    "without statistics": (lambda c: nn.BatchNorm1d(c, track_running_stats=False), (7, 3)),
    "without affine map": (lambda c: nn.BatchNorm1d(c, affine=False), (7, 3)),
}


def forward(model, batch):
    return model(batch)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", [True, False])
def test_moments_are_what_torch_normalises_with(name, mode):
    build, shape = KINDS[name]
    norm = build(3).train(mode)
    batches = [2 * torch.randn(shape) + index for index in range(3)]
    if norm.running_mean is not None:
        norm(batches[0] + 5)  # statistics far from the batches'
    state = copy.deepcopy(norm.state_dict())
    moments = collect_moments(norm, batches, forward)[""]
    for index, batch in enumerate(batches):
        # torch's own training statistics, by a momentum of 1; its variance is unbiased.
        judge = nn.BatchNorm1d(3, momentum=1.0)
        rows = batch.movedim(1, -1).reshape(-1, 3)
        judge(rows)
        torch.testing.assert_close(moments.mean[index].float(), judge.running_mean)
        unbiased = moments.var[index].float() * len(rows) / (len(rows) - 1)
        torch.testing.assert_close(unbiased, judge.running_var)
        assert moments.count[index] == len(rows)
    assert norm.training == mode
    for key, value in norm.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert norm.track_running_stats == (norm.running_mean is not None)
    assert moments.eps == norm.eps
    if norm.running_mean is None:
        assert moments.running is None
    else:
        torch.testing.assert_close(moments.running[0].float(), norm.running_mean)
        torch.testing.assert_close(moments.running[1].float(), norm.running_var)
    assert not norm._forward_pre_hooks


def test_a_batch_that_is_not_finite_does_not_poison_torchs_statistics():
    norm = nn.BatchNorm1d(3)
    collect_moments(norm, [torch.full((4, 3), float("nan"))], forward)
    assert norm.running_mean.isfinite().all() and norm.num_batches_tracked == 0


def test_both_families_in_one_model_are_in_its_order():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 5), BatchNorm(5), nn.BatchNorm1d(5))
    assert list(batch_norms(model)) == ["0", "2", "3"]
    batches = [torch.randn(9, 3) + index for index in range(4)]
    layers = collect_moments(model.eval(), batches, forward)
    assert list(layers) == ["0", "2", "3"]
    for moments in layers.values():
        assert len(moments.count) == 4
    # What torch's norm puts out has mean 0 and variance 1 in every batch: none left to differ.
    torch.testing.assert_close(layers["3"].mean, torch.zeros(4, 5).double(), atol=1e-6, rtol=0)
    assert tid(layers["3"]).var < 1e-4


def test_torchs_norm_and_ours_have_the_same_tid():
    batches = [3 * torch.randn(20, 6) + torch.randn(6) for _ in range(5)]
    ours, torchs = (measure_tid(norm, batches)[""] for norm in (BatchNorm(6), nn.BatchNorm1d(6)))
    assert ours == pytest.approx(torchs, rel=1e-6)
    assert ours.mean > 0.1


def test_running_statistics_are_copies():
    norm = nn.BatchNorm1d(3).double()
    moments = collect_moments(norm, [torch.randn(4, 3).double()], forward)[""]
    norm(5 + torch.randn(4, 3).double())
    assert not moments.running[0].any() and norm.running_mean.all()
