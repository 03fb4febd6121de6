"""Norms alone: what is called, how often, on what."""

from dataclasses import replace

import pytest
import torch

from rbn_fairseq.bench import norm_times
from rbn_fairseq.bench.norm_times import (
    Activations,
    Case,
    Conditions,
    NormStack,
    fixed_case,
    read_norms,
    time_norms,
)
from rbn_fairseq.norms import NORMS, BatchNorm

CASE = Case("made up", [[3, 5], [4, 4, 4]])  # two batches: of two lengths, and of one
HOW = Conditions(["layer", "batch"], channels=8, depth=3, rounds=2)


def test_norms_get_rows_and_share_their_layout(monkeypatch):
    seen = []

    def remember(norm, x, tokens):
        seen.append((tuple(x.shape), tokens))
        return forward(norm, x, tokens)

    forward = BatchNorm.forward
    monkeypatch.setattr(BatchNorm, "forward", remember)
    Activations(CASE, HOW).run(NormStack("batch", HOW))
    first, second = seen[:3], seen[3:]
    assert [shape for shape, _ in first] == [(8, 8)] * 3
    assert [shape for shape, _ in second] == [(12, 8)] * 3
    assert len({tokens for _, tokens in first}) == len({tokens for _, tokens in second}) == 1
    assert first[0][1].sentences.tolist() == [0] * 3 + [1] * 5


@pytest.mark.parametrize("name", [*NORMS, "groupscale+power", "torch-batch"])
def test_every_norm_can_be_timed(name):
    how = replace(HOW, norms=read_norms([name]), channels=16, rounds=1)
    rows = time_norms(CASE, how)
    assert [row.norm for row in rows] == [*dict.fromkeys(["layer", name]), "floor"]
    assert all(row.ms > 0 for row in rows)


def test_times_are_of_one_norm_on_one_batch(monkeypatch):
    # Every action takes 6 milliseconds: 3 norms, 2 batches. The floor: 2.5 copies, or 1.
    monkeypatch.setattr(norm_times, "milliseconds", lambda action, device: 6.0)
    layer, batch, floor = time_norms(CASE, HOW)
    assert (layer.ms, batch.ms, floor.ms, layer.floor_ratio) == (1.0, 1.0, 2.5, 0.4)
    assert (layer.bench, layer.case, layer.channels) == ("norm", "made up", 8)
    *_, floor = time_norms(CASE, replace(HOW, training=False))
    assert (floor.ms, floor.bench) == (1.0, "norm, evaluation")


def test_torch_batch_norm_is_the_same_norm():
    how = replace(HOW, depth=1)
    layout, _ = CASE.layouts("cpu")
    x = torch.randn(8, 8)
    y, other = (NormStack(name, how)(x, layout) for name in ("batch", "torch-batch"))
    torch.testing.assert_close(y, other)


def test_the_reference_comes_first_and_unknown_norms_are_refused():
    assert read_norms(["batch", "layer", "torch-batch"]) == ["layer", "batch", "torch-batch"]
    for names in ["bacth"], ["layer+torch-batch"]:
        with pytest.raises(ValueError, match="--norms"):
            read_norms(names)


def test_made_up_batches_have_the_tokens_that_they_are_named_for():
    case = fixed_case(4096, 512)
    (layout,) = case.layouts("cpu")
    assert (case.name, layout.rows) == ("4096x512", 4096)
    with pytest.raises(ValueError, match="--tokens"):
        fixed_case(100, 8)
