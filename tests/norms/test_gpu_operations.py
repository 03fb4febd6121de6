"""Batch norm by the operations of GPUs, against the definition and autograd in float64."""

import copy
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import gpu_operations
import oracles
from rbn_fairseq.norms import dummy_batch, normalise, record_gaps
from test_batch import assert_same_at_real_tokens, by_definition, random_norm

SHAPES = {
    "some": (8, 4),
    "sentences": (4, 2, 3),
    "C = 1": (7, 1),
    "C = 513": (5, 513),
    "one token": (1, 3),  # its variance is 0
}


@pytest.fixture
def device():
    """Where batch norm takes a GPU's operations: a GPU, or the CPU with stand-ins for them."""
    if torch.cuda.is_available():
        yield "cuda"
    else:
        with gpu_operations.on_the_cpu():
            yield "cpu"


def upstream_of(x, penalty=True):
    """Gradients that arrive at y, and with a penalty at batch mean and batch variance."""
    return torch.randn(x.shape).to(x.dtype), *torch.randn(2 * penalty, x.shape[-1])


def run(norm, x, upstream, device):
    """Outputs of a training forward of a copy of ``norm``, gradients, running statistics."""
    norm = copy.deepcopy(norm).to(device)
    x = x.to(device).detach().requires_grad_()
    with record_gaps() as gaps:
        y = norm(x)
    outputs = (y, gaps[0].batch_mean, gaps[0].batch_var)
    upstream = [gradient.to(device) for gradient in upstream]
    used = outputs[: len(upstream)]
    gradients = torch.autograd.grad(used, (x, *norm.parameters()), upstream)
    results = [tensor.detach().cpu() for tensor in (*outputs, *gradients, *norm.buffers())]
    return results, gaps[0]


def tensors_of(gap):
    """Running statistics before and after."""
    return gap.mean_before, gap.var_before, gap.mean_after, gap.var_after


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("eps", "eps_mode"), [(1e-5, "add"), (1.0, "clamp")])  # 1: among variances
@pytest.mark.parametrize("penalty", [False, True], ids=["", "penalty"])
def test_agrees_with_the_definition(shape, eps, eps_mode, penalty, device):
    norm = random_norm(shape[-1], eps=eps, eps_mode=eps_mode)
    x = 3 + torch.linspace(0.2, 2, shape[-1]) * torch.randn(shape)
    upstream, valid = upstream_of(x, penalty), torch.ones(shape[:-1], dtype=torch.bool)
    expected = by_definition(norm, x, valid, upstream)
    (*actual, new_mean, new_var), gap = run(norm, x, upstream, device)
    std = oracles.std(expected[2], eps, eps_mode)
    assert_same_at_real_tokens(actual, expected, valid, 1e-6, std)  # fp32, some ten operations
    for new, old, of_batch in zip((new_mean, new_var), norm.buffers(), expected[1:3], strict=True):
        exact = 0.95 * old.double() + 0.05 * of_batch
        atol = 1e-6 * (1 + exact.abs().max().item())
        torch.testing.assert_close(new.double(), exact, rtol=0, atol=atol)
    assert gap.count == valid.numel() and gap.share == 1
    assert all(map(torch.equal, tensors_of(gap)[:2], (b.to(device) for b in norm.buffers())))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", ["the model", "activations alone"])
@pytest.mark.parametrize("penalty", [False, True], ids=["", "penalty"])
def test_half_precision_rounds_nothing_but_results(dtype, cast, penalty, device):
    norm = random_norm(6).to(dtype if cast == "the model" else torch.float32)
    x = (3 + 2 * torch.randn(13, 6)).to(dtype)
    upstream = upstream_of(x, penalty)
    actual, _ = run(norm, x, upstream, device)
    full = [tensor.float() for tensor in upstream]
    expected, _ = run(copy.deepcopy(norm).float(), x.float(), full, device)
    assert [part.dtype for part in (actual[0], actual[3], *actual[-2:])] == [
        dtype, dtype, torch.float32, torch.float32,
    ]  # fmt: skip
    for part, exact in zip(actual, expected, strict=True):
        info = torch.finfo(part.dtype)
        atol = info.smallest_normal * info.eps  # subnormal numbers
        rtol = info.eps / 2
        torch.testing.assert_close(part.float(), exact, rtol=rtol, atol=atol)


LAYOUTS = {
    "batch first": ((2, 6, 4), lambda x: x.transpose(0, 1)),
    "channels first": ((4, 6, 2), lambda x: x.permute(1, 2, 0)),
    "some channels of more": ((6, 2, 8), lambda x: x[..., :4]),
    "expanded": ((6, 1, 4), lambda x: x.expand(6, 2, 4)),
    "all the same": ((1,), lambda x: x.expand(6, 2, 4)),
}


@pytest.mark.parametrize(("shape", "view"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("where", ["x", "gradients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_memory_layout_does_not_matter(shape, view, where, dtype, device):
    norm, x = random_norm(4).to(dtype), torch.randn(6, 2, 4).to(dtype)
    gradient, *others = upstream_of(x)
    if where == "x":
        x = view(torch.randn(shape).to(dtype))
        assert not x.is_contiguous()
    else:
        gradient = view(torch.randn(shape).to(dtype))
        others = [torch.randn(1).expand(4), torch.randn(8)[::2]]
    dense = [tensor.contiguous() for tensor in (gradient, *others)]
    for number in (1, 3):  # without a penalty, and with one
        actual, _ = run(norm, x, (gradient, *others)[:number], device)
        expected, _ = run(norm, x.contiguous(), dense[:number], device)
        assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)], ids=["y", "mean", "var", "y and var"])
def test_outputs_that_nothing_uses_have_no_gradient(used, device):
    """A norm without a penalty; a penalty alone."""
    norm, x = random_norm(4), torch.randn(8, 4)
    upstream = [gradient * (i in used) for i, gradient in enumerate(upstream_of(x))]
    expected, _ = run(norm, x, upstream, device)
    norm, x = norm.to(device), x.to(device).requires_grad_()
    with record_gaps() as gaps:
        y = norm(x)
    outputs = [(y, gaps[0].batch_mean, gaps[0].batch_var)[i] for i in used]
    gradients = [upstream[i].to(device) for i in used]
    actual = torch.autograd.grad(outputs, (x, *norm.parameters()), gradients)
    actual = [gradient.cpu() for gradient in actual]
    torch.testing.assert_close(actual, expected[3:6], rtol=1e-5, atol=1e-6)


def test_large_mean_leaves_the_variance_right(device):
    x = 1e4 + torch.randn(600, 3)
    (_, _, var, *_), _ = run(random_norm(3), x, upstream_of(x), device)
    exact = x.double().var(0, correction=0)  # of the rounded values
    # The mean is rounded to half an ulp, 5e-4: squared distances to it are off by that times twice
    # the distance, whose mean is at most the deviation, 1.
    torch.testing.assert_close(var.double(), exact, rtol=1e-3, atol=0)
    one_pass = x.square().mean(0) - x.mean(0).square()
    assert ((one_pass - exact).abs() / exact).max() > 0.1  # what the distances are for


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])  # 1e60 is infinite in fp32
def test_non_finite_statistics_of_one_channel_move_none(value, device):
    norm, x = random_norm(35), torch.randn(4, 2, 35)
    x[1, 0, 34] = value
    results, gap = run(norm, x, upstream_of(x), device)
    assert all(map(torch.equal, results[-2:], norm.buffers()))
    assert all(map(torch.equal, tensors_of(gap)[2:], tensors_of(gap)[:2]))
    assert results[0][..., :34].isfinite().all()


@pytest.mark.parametrize(
    ("shape", "block"), [((4, 2, 3), dummy_batch), ((0, 3), nullcontext)], ids=["dummy", "no rows"]
)
@pytest.mark.parametrize("eps_mode", ["add", "clamp"])
def test_a_batch_without_real_tokens_is_normalised_with_the_population(
    shape, block, eps_mode, device
):
    norm, x = random_norm(3, eps=0.3, eps_mode=eps_mode), torch.randn(shape)
    with block():
        (y, mean, var, *gradients, new_mean, new_var), gap = run(norm, x, upstream_of(x), device)
    old_mean, old_var = norm.buffers()
    expected = (x - old_mean) / oracles.std(old_var, 0.3, eps_mode) * norm.weight + norm.bias
    torch.testing.assert_close(y, expected.detach(), rtol=1e-5, atol=1e-5)  # fp32, of size 10
    assert torch.equal(mean, old_mean) and torch.equal(new_mean, old_mean)
    assert torch.equal(var, old_var) and torch.equal(new_var, old_var)
    assert not any(gradient.any() for gradient in gradients)
    assert gap.count == 0


class Spy:
    """Counts the calls of torch's operations by name; nothing else of them changes."""

    def __init__(self, monkeypatch):
        self.taken = []
        for name in gpu_operations.STAND_INS:
            monkeypatch.setattr(torch, name, partial(self._call, name, getattr(torch, name)))

    def _call(self, name, operation, *arguments):
        self.taken.append(name)
        return operation(*arguments)


@pytest.mark.parametrize("used", [(0,), (0, 1)], ids=["y", "y and mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_operations_are_taken_where_they_serve(used, dtype, device, monkeypatch):
    """A penalty's gradients are in torch's other operations."""
    spy = Spy(monkeypatch)
    norm = random_norm(4).to(device, dtype)
    x = torch.randn(8, 4, device=device, dtype=dtype, requires_grad=True)
    with record_gaps() as gaps:
        outputs = (norm(x), gaps[0].batch_mean)
        sum(outputs[i].sum() for i in used).backward()
    assert spy.taken == list(gpu_operations.STAND_INS)[: 3 if used == (0,) else 1]


HALF, FULL, DOUBLE = torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("rows", "weight", "bias", "serves"),
    [
        (FULL, FULL, FULL, True), (HALF, HALF, HALF, True), (HALF, FULL, FULL, True),
        (DOUBLE, DOUBLE, DOUBLE, True), (FULL, HALF, HALF, False), (HALF, FULL, HALF, False),
        (DOUBLE, FULL, FULL, False), (HALF, DOUBLE, DOUBLE, False),
    ],
)  # fmt: skip
def test_types_that_the_operations_take(rows, weight, bias, serves):
    """As torch's kernels have them: all alike, or parameters in fp32 beside half precision."""

    def tensor(dtype, size=8):
        return SimpleNamespace(dtype=dtype, is_cuda=True, numel=lambda: size)

    assert normalise._gpu_serves(tensor(rows), tensor(weight), tensor(bias)) == serves
    assert not normalise._gpu_serves(tensor(rows, 0), tensor(weight), tensor(bias))
    assert not normalise._gpu_serves(torch.ones(2, 3), torch.ones(3), torch.ones(3))
