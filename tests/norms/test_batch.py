"""Batch norm, against the definition and autograd in float64, and against torch's batch norm."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import oracles
from agreement import randomise
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    ValidTokens,
    dummy_batch,
    record_gaps,
)

EPS_MODES = pytest.mark.parametrize("eps_mode", ["add", "clamp"])
CASES = oracles.SENTENCES | {  # torch's batch norm refuses the last two; their variance is 0
    "one position": (oracles.real_tokens(1, [1]), 3),
    "one token among padding": (oracles.real_tokens(3, [0, 1]), 3),
}


def random_norm(channels, **options):
    norm = randomise(BatchNorm(channels, BatchNormOptions(**options)))
    norm.population.set(torch.randn(channels), 0.1 + torch.rand(channels))
    return norm


def run(norm, x, tokens, upstream):
    """Outputs of one training forward, then the gradients of x, weight and bias."""
    with record_gaps() as gaps:
        y = norm(x, tokens)
    outputs = (y, gaps[0].batch_mean, gaps[0].batch_var)
    return *outputs, *torch.autograd.grad(outputs, (x, *norm.parameters()), upstream)


def random_upstream(x):
    """Gradients that arrive at y, batch mean and batch variance; not zero at padding."""
    channels = x.shape[-1]
    return torch.randn_like(x), *torch.randn(2, channels, dtype=x.dtype)


def by_definition(norm, x, valid, upstream):
    """What ``run`` returns, in float64, for real tokens: the oracle."""
    real = x.detach()[valid].double().requires_grad_()
    weight, bias = (p.detach().double().requires_grad_() for p in norm.parameters())
    outputs = oracles.batch_norm(real, weight, bias, norm.options.eps, norm.options.eps_mode)
    at_y, *at_moments = upstream
    arriving = [at_y[valid].double(), *(gradient.double() for gradient in at_moments)]
    used = outputs[: len(arriving)]
    return *outputs, *torch.autograd.grad(used, (real, weight, bias), arriving)


def assert_same_at_real_tokens(actual, expected, valid, tolerance, std):
    y, mean, var, dx, dweight, dbias = actual
    # y and the gradients of x and weight contain (x - mean) / std, which is off by the rounding
    # of x, of size 10, over std; all else by rounding relative to its largest number.
    shaky = 10 / std.min().item()
    parts = (
        (y[valid], shaky),
        (mean, 1),
        (var, 1),
        (dx[valid], shaky),
        (dweight, shaky),
        (dbias, 1),
    )
    for (part, factor), exact in zip(parts, expected, strict=True):
        atol = tolerance * factor * (1 + exact.abs().max().item())
        torch.testing.assert_close(part.double(), exact, rtol=0, atol=atol)
    assert torch.equal(dx[~valid], torch.zeros_like(dx[~valid]))


# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 2e-15)])
@pytest.mark.parametrize(("valid", "channels"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("eps", [1e-5, 1.0])  # 1 lies among the variances, 0.04 to 4
@EPS_MODES
def test_agrees_with_the_definition(valid, channels, eps_mode, eps, dtype, tolerance):
    norm = random_norm(channels, eps=eps, eps_mode=eps_mode).to(dtype)
    before = [buffer.clone() for buffer in norm.buffers()]
    x = 3 + torch.linspace(0.2, 2, channels) * torch.randn(*valid.shape, channels)
    x = x.to(dtype).requires_grad_()
    upstream = random_upstream(x)
    expected = by_definition(norm, x, valid, upstream)
    actual = run(norm, x, ValidTokens(valid), upstream)
    std = oracles.std(expected[2], eps, eps_mode)
    assert_same_at_real_tokens(actual, expected, valid, tolerance, std)
    for buffer, old, new in zip(norm.buffers(), before, expected[1:3], strict=True):
        torch.testing.assert_close(
            buffer.double(), 0.95 * old.double() + 0.05 * new, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 3, 5), (2, 1, 1), (40, 9, 513)], ids=str)
def test_without_mask_and_penalty_agrees_with_torch_in_fp64(shape, dtype):
    norm = random_norm(shape[-1])
    x, upstream = (1 + 5 * torch.randn(2, *shape)).to(dtype)
    inputs = (x.requires_grad_(), *norm.parameters())
    actual = torch.autograd.grad(norm(x), inputs, upstream)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    y = F.batch_norm(exact[0].flatten(0, 1), None, None, *exact[1:], training=True)
    expected = torch.autograd.grad(y.view(shape), exact, upstream.double())
    rtol = 1e-5 + torch.finfo(dtype).eps
    noise = 1e-6 * upstream.abs().max().item()  # of fp32: sums over the tokens cancel
    for ours, theirs in zip(actual, expected, strict=True):
        atol = noise + rtol * theirs.abs().max().item()
        torch.testing.assert_close(ours.double(), theirs, rtol=rtol, atol=atol)


LAYOUTS = {
    "batch first": ((3, 6, 4), lambda x: x.transpose(0, 1)),
    "channels first": ((4, 6, 3), lambda x: x.permute(1, 2, 0)),
    "every other channel": ((6, 3, 8), lambda x: x[..., ::2]),
    "every other position": ((12, 3, 4), lambda x: x[::2]),
    "expanded": ((6, 1, 4), lambda x: x.expand(6, 3, 4)),
}


@pytest.mark.parametrize(("shape", "view"), LAYOUTS.values(), ids=LAYOUTS)
def test_memory_layout_does_not_matter(shape, view):
    valid = oracles.real_tokens(6, [6, 2, 3])
    norm = random_norm(4).double()
    x = view(torch.randn(shape, dtype=torch.double, requires_grad=True))
    upstream = random_upstream(x)
    expected = by_definition(norm, x, valid, upstream)
    actual = run(norm, x, ValidTokens(valid), upstream)
    assert actual[0].shape == x.shape
    assert_same_at_real_tokens(actual, expected, valid, 2e-15, expected[2].sqrt())


@pytest.mark.parametrize("shape", [(9, 4), (3, 3, 4), (3, 1, 3, 4), (1, 4)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_any_number_of_leading_axes(shape, masked):
    valid = torch.arange(torch.Size(shape[:-1]).numel()).view(shape[:-1]) != 1
    tokens = ValidTokens(valid) if masked else None
    norm = random_norm(4).double()
    x = torch.randn(shape, dtype=torch.double, requires_grad=True)
    upstream = random_upstream(x)
    valid = valid if masked else torch.ones_like(valid)
    expected = by_definition(norm, x, valid, upstream)
    std = oracles.std(expected[2], 1e-5, "add")
    assert_same_at_real_tokens(run(norm, x, tokens, upstream), expected, valid, 2e-15, std)


@EPS_MODES
@pytest.mark.parametrize("shape", [(4, 3, 5), (1, 1, 513), (7, 1)], ids=str)
def test_evaluation_is_torchs_with_the_population(shape, eps_mode):
    norm = random_norm(shape[-1], eps=0.3, eps_mode=eps_mode).eval()  # some variances are below
    mean, var = (buffer.clone() for buffer in norm.buffers())
    x = torch.randn(shape, requires_grad=True)
    clamp = eps_mode == "clamp"
    expected = F.batch_norm(
        x.view(-1, shape[-1]), mean, var.clamp(min=0.3) if clamp else var,
        norm.weight, norm.bias, training=False, eps=1e-30 if clamp else 0.3,  # some want eps > 0
    ).view(shape)  # fmt: skip
    with record_gaps() as gaps:
        y = norm(x)
    # A few fp32 roundings of values of size 10.
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    upstream, inputs = torch.randn_like(x), (x, *norm.parameters())
    gradients = (torch.autograd.grad(out, inputs, upstream) for out in (y, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)  # sums of 12 such values
    assert torch.equal(norm.population.running_mean, mean)
    assert torch.equal(norm.population.running_var, var)
    assert gaps == []


NOTHING = ValidTokens(torch.zeros(4, 2, dtype=torch.bool))
EMPTY = {
    "no rows": ((0, 3), None, nullcontext),
    "padding alone": ((4, 2, 3), NOTHING, nullcontext),
    "dummy batch": ((4, 2, 3), ValidTokens(oracles.real_tokens(4, [4, 2])), dummy_batch),
    "dummy batch without mask": ((4, 2, 3), None, dummy_batch),
}


@pytest.mark.parametrize(("shape", "tokens", "block"), EMPTY.values(), ids=EMPTY)
@EPS_MODES
def test_a_batch_without_real_tokens_is_the_population(shape, tokens, block, eps_mode):
    norm = random_norm(3, eps=0.3, eps_mode=eps_mode)
    x = torch.randn(shape, requires_grad=True)
    mean, var = (buffer.clone() for buffer in norm.buffers())
    with block():
        y, batch_mean, batch_var, *gradients = run(norm, x, tokens, random_upstream(x))
    expected = (x - mean) / oracles.std(var, 0.3, eps_mode) * norm.weight + norm.bias
    if tokens is not None:
        expected = expected.masked_fill(~tokens.valid.unsqueeze(2), 0)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)  # fp32, values of size 10
    for actual, old in zip((batch_mean, batch_var, *norm.buffers()), (mean, var) * 2, strict=True):
        assert torch.equal(actual, old)
    for gradient in gradients:
        assert torch.equal(gradient, torch.zeros_like(gradient))
