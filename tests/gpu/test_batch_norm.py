"""Batch norm on a GPU, at sizes of trainings."""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from rbn_fairseq.norms import (
    NORMS,
    Affine,
    BatchNorm,
    BatchNormOptions,
    InstanceNorm,
    NormPlace,
    ValidTokens,
    build_norm,
    cut_lengths,
    dummy_batch,
    record_gaps,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIZES = [(1000, 256), (4096, 512), (65536, 256), (65536, 512), (65536, 1024), (999, 8192)]


def inputs(tokens, channels, dtype=torch.float32):
    """A norm, rows, gradients; on the GPU."""
    norm = BatchNorm(channels)
    nn.init.normal_(norm.weight)
    x, upstream = torch.randn(2, tokens, channels, device="cuda").to(dtype)
    at_moments = torch.randn(2, channels, device="cuda")
    return norm.cuda(), (3 + x).requires_grad_(), (upstream, *at_moments)


def padded(channels):
    """Activations of 25 sentences, their mask, gradients; on the GPU."""
    x = torch.randn(40, 25, channels, device="cuda", requires_grad=True)
    valid = torch.rand(40, 25, device="cuda") < 0.8
    return x, valid, (torch.randn_like(x), *torch.randn(2, channels, device="cuda"))


def step(norm, x, tokens, upstream):
    """Outputs of one training forward, then the gradients of x, weight and bias."""
    with record_gaps() as gaps:
        y = norm(x, tokens)
    outputs = (y, gaps[0].batch_mean, gaps[0].batch_var)
    gradients = torch.autograd.grad(outputs, (x, *norm.parameters()), upstream)
    return [tensor.detach() for tensor in (*outputs, *gradients)]


@contextmanager
def no_waiting():
    """Raise where torch waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_agree_with_fp64(size, dtype):
    norm, x, upstream = inputs(*size, dtype)
    exact = copy.deepcopy(norm).double()
    doubles = [tensor.double() for tensor in upstream]
    expected = step(exact, x.detach().double().requires_grad_(), None, doubles)
    actual = step(norm, x, None, upstream)
    for part, right in zip(actual, expected, strict=True):
        # fp32 sums over up to 65536 tokens, pairwise; where it is the result's, half an ulp of it.
        rtol = 1e-5 + torch.finfo(part.dtype).eps / 2
        atol = 1e-5 * (1 + right.abs().max().item())
        torch.testing.assert_close(part.double(), right, rtol=rtol, atol=atol)
    for buffer, right in zip(norm.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(buffer.double(), right, rtol=1e-5, atol=1e-5)


def test_runs_are_the_same_bit_for_bit():
    norm, x, upstream = inputs(4096, 512)
    first = step(copy.deepcopy(norm), x, None, upstream)
    for _ in range(5):
        again = step(copy.deepcopy(norm), x, None, upstream)
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("kind", ["batch", "by length", "instance"])
@pytest.mark.parametrize("way", ["rows", "padded", "no mask"])
def test_nothing_waits_for_the_gpu(kind, way):
    """Rows never; behind a mask the first norm of a pass does, for the lengths."""
    options = BatchNormOptions(length_bins=8 if kind == "by length" else 1)
    norm = InstanceNorm(256) if kind == "instance" else BatchNorm(256, options)
    norm.cuda()
    if kind == "by length":
        norm.population.set_bins(cut_lengths(range(1, 41), 8))
    x, valid, upstream = padded(256)
    tokens = ValidTokens(valid)
    layout = tokens.rows()  # the wait
    if way == "rows":
        tokens = layout
        x = layout.pack(x.detach()).requires_grad_()
        upstream = layout.pack(upstream[0]), *upstream[1:]
    elif way == "no mask":
        tokens = None

    def train():
        with record_gaps() as gaps:
            y = norm(x, tokens)
        outputs = (y, *(part for gap in gaps for part in (gap.batch_mean, gap.batch_var)))
        torch.autograd.grad(outputs, (x, *norm.parameters()), upstream[: len(outputs)])

    train()
    torch.cuda.synchronize()
    with no_waiting():
        train()
        with dummy_batch():
            train()
        norm.eval()(x, tokens)
    assert kind != "by length" or norm.population.bin_weight.any()


def test_instance_norm_agrees_with_the_cpu():
    norm, (x, valid, (upstream, *_)) = InstanceNorm(65).cuda(), padded(65)
    results = []
    for device in ("cuda", "cpu"):
        twin, here = copy.deepcopy(norm).to(device), x.detach().to(device).requires_grad_()
        y = twin(here, ValidTokens(valid.to(device)))
        gradients = torch.autograd.grad(y, (here, *twin.parameters()), upstream.to(device))
        results.append([y.detach().cpu(), *(gradient.cpu() for gradient in gradients)])
    for part, right in zip(*results, strict=True):
        # fp32 sums over up to 40 tokens, over deviations of some 0.3 and more.
        atol = 1e-5 * (1 + right.abs().max().item())
        torch.testing.assert_close(part, right, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("kind", [BatchNorm, Affine])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_evaluation_does_not_wait(kind, dtype):
    """As in every step of decoding; what is folded allocates its output alone."""
    norm, x = kind(256).cuda().eval(), torch.randn(1, 20, 256, device="cuda", dtype=dtype)
    norm(x)
    torch.cuda.synchronize()
    before = allocations()
    with no_waiting():
        y = norm(x)
    assert y.dtype == dtype and (kind is BatchNorm or allocations() == before + 1)


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_captured_evaluation_follows_the_statistics(dtype):
    norm, x = BatchNorm(256).cuda().eval(), torch.randn(20, 256, device="cuda", dtype=dtype)
    other = BatchNorm(256).cuda().eval()
    for number in (*other.parameters(), *other.buffers()):
        number.copy_(torch.rand(256) + 0.5)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        norm(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = norm(x)
    norm.load_state_dict(other.state_dict())
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(captured, other(x))


def test_a_captured_step_is_replayed():
    norm, x, upstream = inputs(1000, 256)
    eager = copy.deepcopy(norm)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as torch asks before a capture
        for _ in range(3):
            step(norm, x, None, upstream)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(norm, x, None, upstream)
    norm.load_state_dict(eager.state_dict())
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected = step(eager, x, None, upstream)
        assert all(map(torch.equal, captured, expected))
        assert all(map(torch.equal, norm.buffers(), eager.buffers()))


def test_torch_compile_runs_around_it():
    module = nn.Sequential(nn.Linear(64, 64), BatchNorm(64), nn.ReLU()).cuda()
    twin, x = copy.deepcopy(module), torch.randn(100, 64, device="cuda")
    torch.compile(module)(x).square().sum().backward()
    twin(x).square().sum().backward()
    # Compiled matrix products and sums round in another order.
    close = {"rtol": 1e-4, "atol": 1e-4}
    for ours, plain in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, plain.grad, **close)
    for ours, plain in zip(module.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, plain, **close)


@torch.no_grad()
@pytest.mark.parametrize("name", NORMS)
def test_evaluation_compiles_whole(name):
    norm, x = build_norm([name], NormPlace(64, heads=4), {}).cuda().eval(), torch.randn(9, 64)
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x.cuda()), norm(x.cuda()))
