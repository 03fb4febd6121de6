"""Norms alone: what is called, how often, on what."""

from dataclasses import replace

import pytest
import torch

from rbn_fairseq.bench import norms
from rbn_fairseq.bench.cases import Case
from rbn_fairseq.bench.norms import Activations, Conditions, NormStack, read_norms, time_norms
from rbn_fairseq.norms import NORMS, BatchNorm, LayerNorm

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


def test_backward_reaches_x_and_all_weights(monkeypatch):
    found = []
    grad = torch.autograd.grad

    def remember(*args, **kwargs):
        found.append(grad(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(torch.autograd, "grad", remember)
    stack = NormStack("batch", HOW)
    Activations(CASE, HOW).run(stack)
    assert len(found) == 2  # batches
    assert all(len(gradients) == 1 + 2 * HOW.depth for gradients in found)
    assert all(gradient.abs().max() > 0 for gradients in found for gradient in gradients)
    assert all(weight.grad is None for weight in stack.parameters())


def test_evaluation_has_no_backward_and_moves_no_statistics(monkeypatch):
    how = replace(HOW, training=False)
    monkeypatch.setattr(torch.autograd, "grad", None)  # cannot be called
    stack = NormStack("batch", how)
    Activations(CASE, how).run(stack)
    mean, var = stack[0].population.get()
    assert not mean.any() and (var == 1).all()


@pytest.mark.parametrize("name", [*NORMS, "groupscale+power", "torch-batch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_norm_can_be_timed(name, dtype):
    how = replace(HOW, norms=read_norms([name]), channels=16, dtype=dtype, rounds=1)
    rows = time_norms(CASE, how)
    assert [row.norm for row in rows] == [*dict.fromkeys(["layer", name]), "floor"]
    assert all(row.ms > 0 and row.dtype == dtype for row in rows)


def test_times_are_of_one_norm_on_one_batch(monkeypatch):
    # Every action takes 6 milliseconds: 3 norms, 2 batches. The floor: 2.5 copies, or 1.
    monkeypatch.setattr(norms, "milliseconds", lambda action, device: 6.0)
    layer, batch, floor = time_norms(CASE, HOW)
    assert (layer.ms, batch.ms, floor.ms, layer.floor_ratio) == (1.0, 1.0, 2.5, 0.4)
    assert (layer.bench, layer.case, layer.channels) == ("norm", "made up", 8)
    *_, floor = time_norms(CASE, replace(HOW, training=False))
    assert (floor.ms, floor.bench) == (1.0, "norm, evaluation")


@pytest.mark.parametrize("training, blocks", [(True, 3), (False, 2)])
def test_the_floor_copies_each_batch_for_each_norm_into_as_much_memory(
    monkeypatch, training, blocks
):
    how = replace(HOW, training=training)
    activations = Activations(CASE, how)
    gradients = [upstream.clone() for _, upstream, _ in activations]
    copies, copy = [], torch.Tensor.copy_

    def remember(y, x):
        copies.append((tuple(x.shape), x.data_ptr(), y.data_ptr()))
        return copy(y, x)

    monkeypatch.setattr(torch.Tensor, "copy_", remember)
    activations.copy()
    assert [shape for shape, *_ in copies] == [(8, 8)] * 3 + [(12, 8)] * 3
    for batch in copies[:3], copies[3:]:
        sources, targets = ([places[end] for places in batch] for end in (1, 2))
        assert sources[0] == next(iter(activations))[0].data_ptr()
        assert sources[1:] == targets[:-1]  # each reads what the last one wrote
        assert len(set(targets)) == blocks
    for (_, upstream, _), gradient in zip(activations, gradients, strict=True):
        assert torch.equal(upstream, gradient)


def test_torch_batch_norm_is_the_same_norm():
    how = replace(HOW, depth=1)
    layout, _ = CASE.layouts("cpu")
    x = torch.randn(8, 8)
    y, other = (NormStack(name, how)(x, layout) for name in ("batch", "torch-batch"))
    torch.testing.assert_close(y, other)


def test_threads_are_set_and_restored(monkeypatch):
    seen = []
    forward = LayerNorm.forward

    def remember(norm, x, tokens):
        seen.append(torch.get_num_threads())
        return forward(norm, x, tokens)

    monkeypatch.setattr(LayerNorm, "forward", remember)
    before = torch.get_num_threads()
    time_norms(CASE, replace(HOW, norms=["layer"], rounds=1, threads=before + 1))
    assert set(seen) == {before + 1} and torch.get_num_threads() == before


def test_the_reference_comes_first_and_unknown_norms_are_refused():
    assert read_norms(["batch", "layer", "torch-batch"]) == ["layer", "batch", "torch-batch"]
    with pytest.raises(ValueError, match="--norms: unknown norm `bacth`. Did you mean `batch`"):
        read_norms(["bacth"])
    with pytest.raises(ValueError, match="`torch-batch` is torch's own .* but `layer.torch-batch`"):
        read_norms(["layer+torch-batch"])
