"""No norm waits for the host or touches files (invariant 5).

Tensors on the meta device have no values: whatever would read one (``.item()``, a branch on a
tensor, an index whose length depends on the data) raises.
"""

import builtins

import pytest
import torch

from rbn_fairseq.norms import (
    NORMS,
    BatchNormOptions,
    NormPlace,
    ValidTokens,
    build_norm,
    freeze_statistics,
    record_gaps,
    record_moments,
)

BY_LENGTH = {"batch": BatchNormOptions(length_bins=4)}
CASES = {name: (name, {}) for name in NORMS} | {"batch by length": ("batch", BY_LENGTH)}


@pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("update", [0, 10**6], ids=["first", "behind every schedule"])
def test_forward_and_backward_read_no_value(name, options, training, update, monkeypatch):
    norm = build_norm((name,), NormPlace(16, heads=4), options).to("meta").train(training)
    if hasattr(norm, "set_num_updates"):
        norm.set_num_updates(update)
    x = torch.empty(5, 3, 16, device="meta", requires_grad=True)
    tokens = ValidTokens.from_padding_mask(torch.empty(3, 5, dtype=torch.bool, device="meta"))

    def refuse(*args, **kwargs):
        raise AssertionError("a norm opened a file")

    monkeypatch.setattr(builtins, "open", refuse)
    with record_gaps() as gaps:
        y = norm(x, tokens)
    penalty = sum((gap.batch_mean - gap.mean_before).square().sum() for gap in gaps)
    (y.sum() + penalty).backward()
    monkeypatch.undo()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("masked", [True, False])
def test_moments_by_length_read_no_value(masked):
    norm = build_norm(("batch",), NormPlace(16), BY_LENGTH).to("meta")
    mask = torch.empty(5, 3, dtype=torch.bool, device="meta") if masked else None
    with freeze_statistics(), record_moments() as records:
        norm(torch.empty(5, 3, 16, device="meta"), ValidTokens(mask))
    assert records[0].moments.bins.mean.shape == (4, 16)
