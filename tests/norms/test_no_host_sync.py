"""No norm waits for the host or touches files (invariant 5).

Tensors on the meta device have no values: whatever would read one (``.item()``, a branch on a
tensor, an index whose length depends on the data) raises.
"""

import builtins
from unittest import mock

import pytest
import torch
import torch._dynamo  # noqa: F401 (by torch 2.11, at the first operation on the meta device)

from rbn_fairseq.norms import (
    NORMS,
    BatchLayout,
    BatchNormOptions,
    NormPlace,
    ValidTokens,
    build_norm,
    dummy_batch,
    freeze_statistics,
    lay_out,
    record_gaps,
    record_moments,
)
from rbn_fairseq.norms import tokens as tokens_module

BY_LENGTH = {"batch": BatchNormOptions(length_bins=4)}
CASES = {name: (name, {}) for name in NORMS} | {"batch by length": ("batch", BY_LENGTH)}
EVERY = pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES)


def on_meta():
    """The layout of 5 rows of 15 positions (T, B)."""
    lengths, index = (torch.empty(n, dtype=torch.long, device="meta") for n in (3, 5))
    return BatchLayout(lengths, [1, 1, 3], index, torch.Size([5, 3]))


def step(norm, x, tokens):
    """Forward, with a penalty in training, and backward."""
    with record_gaps() as gaps:
        y = norm(x, tokens)
    penalty = sum((gap.batch_mean - gap.mean_before).square().sum() for gap in gaps)
    (y.sum() + penalty).backward()
    assert x.grad.shape == x.shape


@EVERY
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("update", [0, 10**6], ids=["first", "behind every schedule"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "rows"])
def test_forward_and_backward_read_no_value(name, options, training, update, padded, monkeypatch):
    norm = build_norm((name,), NormPlace(16, heads=4), options).to("meta").train(training)
    if hasattr(norm, "set_num_updates"):
        norm.set_num_updates(update)

    def refuse(*args, **kwargs):
        raise AssertionError("a norm opened a file")

    monkeypatch.setattr(builtins, "open", refuse)
    if padded:
        x = torch.empty(5, 3, 16, device="meta", requires_grad=True)
        step(norm, x, ValidTokens())
    else:
        x = torch.empty(5, 16, device="meta", requires_grad=True)
        step(norm, x, on_meta())
    monkeypatch.undo()


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_the_door_waits_once(name, options, training):
    """For the lengths, whichever norm of a pass is the first; for nothing else."""
    norms = [
        build_norm((name,), NormPlace(16, heads=4), options).to("meta").train(training)
        for _ in range(3)
    ]
    mask = torch.empty(5, 3, dtype=torch.bool, device="meta")
    tokens = ValidTokens(mask)
    with mock.patch.object(tokens_module, "lay_out", return_value=[on_meta()]) as waits:
        for norm in norms:
            step(norm, torch.empty(5, 3, 16, device="meta", requires_grad=True), tokens)
    assert waits.call_count <= 1
    with pytest.raises((RuntimeError, NotImplementedError)):
        lay_out(mask)  # which is what waits


@pytest.mark.parametrize("block", [freeze_statistics, dummy_batch])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "rows"])
def test_moments_by_length_read_no_value(block, padded):
    norm = build_norm(("batch",), NormPlace(16), BY_LENGTH).to("meta")
    with freeze_statistics(), block(), record_moments() as records:
        if padded:
            norm(torch.empty(5, 3, 16, device="meta"), ValidTokens())
        else:
            norm(torch.empty(5, 16, device="meta"), on_meta())
    assert records[0].moments.bins.mean.shape == (4, 16)
