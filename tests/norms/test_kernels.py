"""Batch norm by its kernels, against the definition and autograd in float64."""

import copy
import importlib
import io
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
from torch import nn

import oracles
from rbn_fairseq.norms import (
    Affine,
    BatchNorm,
    BatchNormOptions,
    BatchRenorm,
    dummy_batch,
    freeze_statistics,
    record_gaps,
    record_moments,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # of infinite numbers

SHAPES = {
    "some": (8, 4),
    "sentences": (4, 2, 3),
    "C = 1": (7, 1),
    "C = 513": (5, 513),  # no multiple of any tile's width
    "one token": (1, 3),  # its variance is 0
}
# One rounding, to half an ulp; Triton's interpreter cuts bf16 off, by up to one.
HALF_ULPS = 1 if torch.cuda.is_available() else 2
SMALL_TILES = {"ELEMENTS": 8, "CHANNELS": 4, "PROGRAMS": 6, "JOINED_PARTS": 2, "JOINED_CHANNELS": 2}


def random_norm(channels, **options):
    norm = BatchNorm(channels, BatchNormOptions(**options))
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    norm.population.set(torch.randn(channels), 0.1 + torch.rand(channels))
    return norm


def upstream_of(x):
    """Gradients that arrive at y, batch mean and batch variance."""
    return torch.randn(x.shape).to(x.dtype), *torch.randn(2, x.shape[-1])


def run(norm, x, upstream, device):
    """Outputs of a training forward of a copy of ``norm``, gradients, running statistics."""
    norm = copy.deepcopy(norm).to(device)
    x = x.to(device).detach().requires_grad_()
    with record_gaps() as gaps:
        y = norm(x)
    outputs = (y, gaps[0].batch_mean, gaps[0].batch_var)
    upstream = [gradient.to(device) for gradient in upstream]
    gradients = torch.autograd.grad(outputs, (x, *norm.parameters()), upstream)
    results = [tensor.detach().cpu() for tensor in (*outputs, *gradients, *norm.buffers())]
    return results, gaps[0]


def definition(norm, x, upstream):
    """What ``run`` returns, in float64."""
    exact = x.double().requires_grad_()
    weight, bias = (p.detach().double().requires_grad_() for p in norm.parameters())
    y, *moments = oracles.batch_norm(
        exact.flatten(0, -2), weight, bias, norm.options.eps, norm.options.eps_mode
    )
    outputs = y.view(x.shape), *moments
    gradients = torch.autograd.grad(
        outputs, (exact, weight, bias), [gradient.double() for gradient in upstream]
    )
    running = [
        0.95 * old.double() + 0.05 * new
        for old, new in zip(norm.buffers(), outputs[1:], strict=True)
    ]
    return [tensor.detach() for tensor in (*outputs, *gradients, *running)]


def assert_defined(norm, x, upstream, device, tolerance=1e-6):
    """Compare ``run`` with the definition; return the gap."""
    actual, gap = run(norm, x, upstream, device)
    expected = definition(norm, x, upstream)
    # What contains (x - mean) / std is off by the rounding of x, of size 10, over std; all else
    # by rounding, relative to its largest number.
    shaky = 10 / oracles.std(expected[2], norm.options.eps, norm.options.eps_mode).min().item()
    factors = (shaky, 1, 1, shaky, shaky, 1, 1, 1)
    for part, exact, factor in zip(actual, expected, factors, strict=True):
        atol = tolerance * factor * (1 + exact.abs().max().item())
        torch.testing.assert_close(part.double(), exact, rtol=0, atol=atol)
    assert gap.count == x[..., 0].numel() and gap.share == 1
    return gap


def tensors_of(gap):
    """Running statistics before and after."""
    return gap.mean_before, gap.var_before, gap.mean_after, gap.var_after


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("eps", "eps_mode"), [(1e-5, "add"), (1.0, "clamp")])  # 1: among variances
def test_agrees_with_the_definition(shape, eps, eps_mode, device):
    norm = random_norm(shape[-1], eps=eps, eps_mode=eps_mode)
    x = 3 + torch.linspace(0.2, 2, shape[-1]) * torch.randn(shape)
    gap = assert_defined(norm, x, upstream_of(x), device)
    assert all(map(torch.equal, tensors_of(gap)[:2], (b.to(device) for b in norm.buffers())))


@pytest.mark.parametrize("tokens", [21, 2])  # tiles a part: several, the last one past the end; 1
def test_many_tiles_and_parts_agree_with_the_definition(tokens, device, monkeypatch):
    tiles = importlib.import_module("rbn_fairseq.norms.kernels.parts")
    for name, size in SMALL_TILES.items():
        monkeypatch.setattr(tiles, name, size)
    norm, x = random_norm(5), 3 + torch.randn(tokens, 5)
    assert_defined(norm, x, upstream_of(x), device)


def test_runs_are_the_same_bit_for_bit(device):
    norm, x = random_norm(33), torch.randn(49, 33)
    upstream = upstream_of(x)
    first, second = (run(norm, x, upstream, device)[0] for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", ["the model", "activations alone"])
def test_half_precision_rounds_nothing_but_results(dtype, cast, device):
    norm = random_norm(6).to(dtype if cast == "the model" else torch.float32)
    x = (3 + 2 * torch.randn(13, 6)).to(dtype)
    upstream = upstream_of(x)
    actual, _ = run(norm, x, upstream, device)
    full = [tensor.float() for tensor in upstream]
    expected, _ = run(copy.deepcopy(norm).float(), x.float(), full, device)
    assert [part.dtype for part in (actual[0], actual[3], *actual[-2:])] == [
        dtype, dtype, torch.float32, torch.float32,
    ]  # fmt: skip
    for part, exact in zip(actual, expected, strict=True):
        info = torch.finfo(part.dtype)
        atol = info.smallest_normal * info.eps  # subnormal numbers
        rtol = info.eps / 2 * HALF_ULPS
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
def test_memory_layout_does_not_matter(shape, view, where, device):
    norm = random_norm(4)
    x, (gradient, *others) = torch.randn(6, 2, 4), upstream_of(torch.randn(6, 2, 4))
    if where == "x":
        x = view(torch.randn(shape))
        assert not x.is_contiguous()
    else:
        gradient = view(torch.randn(shape))
        others = [torch.randn(1).expand(4), torch.randn(8)[::2]]
    dense = [tensor.contiguous() for tensor in (gradient, *others)]
    actual, _ = run(norm, x, (gradient, *others), device)
    expected, _ = run(norm, x.contiguous(), dense, device)
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
    for gradient, exact in zip(actual, expected[3:6], strict=True):
        assert torch.equal(gradient.cpu(), exact)


def test_large_mean_leaves_the_variance_right(device):
    x = 1e4 + torch.randn(600, 3)
    (_, _, var, *_), _ = run(random_norm(3), x, upstream_of(x), device)
    exact = x.double().var(0, correction=0)  # of the rounded values
    # Means of two tokens are rounded to half an ulp, 5e-4: squared distances to them are off by
    # that times twice the distance, whose mean is at most the deviation, 1.
    torch.testing.assert_close(var.double(), exact, rtol=1e-3, atol=0)
    one_pass = x.square().mean(0) - x.mean(0).square()
    assert ((one_pass - exact).abs() / exact).max() > 0.1  # what the merging is for


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])  # 1e60 is infinite in fp32
def test_non_finite_statistics_of_one_channel_move_none(value, device):
    norm, x = random_norm(35), torch.randn(4, 2, 35)  # of 3 programs that join parts
    x[1, 0, 34] = value
    results, gap = run(norm, x, upstream_of(x), device)
    assert all(map(torch.equal, results[-2:], norm.buffers()))
    assert all(map(torch.equal, tensors_of(gap)[2:], tensors_of(gap)[:2]))
    assert results[0][..., :34].isfinite().all()


def test_frozen_statistics_do_not_move(device):
    norm, x = random_norm(3), torch.randn(4, 2, 3)
    upstream = upstream_of(x)
    with freeze_statistics():
        frozen, gap = run(norm, x, upstream, device)
    free, _ = run(norm, x, upstream, device)
    assert all(map(torch.equal, frozen[-2:], norm.buffers()))
    assert all(map(torch.equal, tensors_of(gap)[2:], tensors_of(gap)[:2]))
    assert all(map(torch.equal, frozen[:-2], free[:-2]))
    assert not torch.equal(free[-1], frozen[-1])


def test_frozen_statistics_are_not_written(device):
    norm, x = random_norm(3).to(device), torch.rand(4, 2, 3).to(device)
    norm.population.running_mean.fill_(-0.0)  # moving by nothing would make it 0.0
    versions = [buffer._version for buffer in norm.buffers()]
    with freeze_statistics():
        norm(x)
    assert norm.population.running_mean.signbit().all()
    assert [buffer._version for buffer in norm.buffers()] == versions


@pytest.mark.parametrize("inference", [False, True])
def test_versions_are_told_one_by_one_where_there_are_any(inference, device, monkeypatch):
    """Older torch takes no list, and refuses tensors of inference."""
    told = []
    monkeypatch.setattr(torch.autograd.graph, "increment_version", told.append)
    with torch.inference_mode(inference):
        norm = random_norm(3).to(device)
        x = torch.rand(4, 2, 3).to(device)
        before = norm.population.running_mean.clone()
        norm(x)
    assert not torch.equal(norm.population.running_mean, before)
    assert list(map(id, told)) == ([] if inference else list(map(id, norm.buffers())))


def test_momentum_1_takes_the_batchs(device):
    results, _ = run(random_norm(3, momentum=1), x := torch.randn(4, 2, 3), upstream_of(x), device)
    assert torch.equal(results[-2], results[1]) and torch.equal(results[-1], results[2])


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


def test_what_is_recorded_is_the_batchs(device):
    norm, x = random_norm(3).to(device), torch.randn(4, 2, 3).to(device)
    before = [buffer.clone() for buffer in norm.buffers()]
    versions = [buffer._version for buffer in norm.buffers()]
    with record_moments() as moments, record_gaps() as gaps:
        norm(x.requires_grad_())
    (record,), (gap,), batch = moments, gaps, moments[0].moments
    assert record.norm is gap.norm is norm
    assert torch.equal(batch.mean, gap.batch_mean) and torch.equal(batch.var, gap.batch_var)
    assert gap.batch_var.requires_grad and not batch.var.requires_grad
    assert batch.n == gap.count == 8 and batch.share == gap.share == 1
    assert not any(tensor.requires_grad for tensor in (*tensors_of(gap), gap.count))
    assert all(map(torch.equal, tensors_of(gap), (*before, *norm.buffers())))
    changed = zip(norm.buffers(), versions, strict=True)
    assert all(buffer._version > version for buffer, version in changed)
    torch.save(norm.state_dict(), io.BytesIO())
    copy.deepcopy(norm)


def test_three_launches_each_way(device):
    forward = importlib.import_module("rbn_fairseq.norms.kernels.forward")
    norm, x = random_norm(3).to(device), torch.randn(4, 2, 3).to(device).requires_grad_()
    kind = type(forward._finish)
    with mock.patch.object(kind, "run", autospec=True, side_effect=kind.run) as launched:
        y = norm(x)
        assert launched.call_count == 3
        y.sum().backward()
        assert launched.call_count == 6


class Own(BatchNorm):
    """A user's subclass that trains alike."""


@pytest.mark.parametrize(("kind", "count"), [(Own, 3), (BatchRenorm, 0)])
def test_subclasses_that_train_alike_have_the_kernels(kind, count, device):
    forward = importlib.import_module("rbn_fairseq.norms.kernels.forward")
    launcher = type(forward._finish)
    with mock.patch.object(launcher, "run", autospec=True, side_effect=launcher.run) as launched:
        kind(3).to(device)(torch.randn(4, 2, 3).to(device))
    assert launched.call_count == count


def test_launches_are_on_the_rows_gpu(device, monkeypatch):
    """Which need not be the current one; there may be only one here."""
    chosen = []

    @contextmanager
    def device_of(rows):
        chosen.append(rows.device)
        yield
        chosen.pop()

    forward = importlib.import_module("rbn_fairseq.norms.kernels.forward")
    kind, where = type(forward._finish), []
    run = kind.run

    def noting(*args, **kwargs):
        where.append([place.type for place in chosen])
        return run(*args, **kwargs)

    def run_both_ways():
        norm, x = random_norm(3).to(device), torch.randn(4, 2, 3).to(device)
        norm(x.requires_grad_()).sum().backward()
        with torch.no_grad():
            norm.eval()(x.half())

    run_both_ways()  # on a GPU the first launch of each dtype is a trial
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(kind, "run", noting)
    run_both_ways()
    assert where == [[torch.device(device).type]] * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 4), (1, 1), (3, 65)], ids=str)
def test_transform_is_one_multiply_add(shape, dtype, device):
    function = importlib.import_module("rbn_fairseq.norms.kernels.function")
    rows = torch.randn(shape[0], 2 * shape[1]).to(device, dtype)[:, : shape[1]]
    scale, shift = torch.randn(2, shape[1]).to(device)
    exact = rows.double() * scale.double() + shift.double()
    actual = function.transform(rows, scale, shift)
    assert actual.dtype == dtype and actual.is_contiguous()
    # Of the result, and of fp32 in between, also where two numbers cancel.
    rtol = torch.finfo(dtype).eps / 2 * HALF_ULPS + 2e-7
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("kind", [BatchNorm, Affine])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_evaluation_of_half_precision_writes_no_fp32(kind, dtype, device, monkeypatch):
    norm = kind(6).to(device).eval()
    for number in (*norm.parameters(), *norm.buffers()):
        number.copy_(torch.rand(6) + 0.5)
    x = torch.randn(5, 2, 6).transpose(0, 1).to(device, dtype)
    exact = norm.double()(x.double())
    norm.float()
    if kind is BatchNorm:
        norm.make_generation_fast_()
    norm(x)  # batch norm keeps its scale and shift
    monkeypatch.setattr(torch, "addcmul", None)
    actual = norm(x)
    assert actual.shape == x.shape and actual.dtype == dtype
    rtol = torch.finfo(dtype).eps / 2 * HALF_ULPS + 2e-7
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=1e-6)
