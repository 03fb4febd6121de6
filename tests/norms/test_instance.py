"""Instance norm over real tokens, against the definition, sentence by sentence, in float64."""

import pytest
import torch

import oracles
from agreement import assert_agrees, assert_half_rounds_once, randomise
from rbn_fairseq.norms import InstanceNorm, InstanceNormOptions, ValidTokens

REAL = {  # masks (T, B) and C
    "no padding": (oracles.real_tokens(5, [5, 5]), 4),
    "right padding": (oracles.real_tokens(6, [6, 2, 3]), 4),
    "left padding": (oracles.real_tokens(6, [6, 2, 3], left_pad=True), 4),
    "a sentence of padding": (oracles.real_tokens(4, [4, 0, 2]), 5),
    "a column of padding": (oracles.real_tokens(4, [3, 2]), 5),
    "holes": (torch.tensor([[1, 0], [0, 1], [1, 1], [1, 0], [0, 1]]).bool(), 3),
    "C = 1": (oracles.real_tokens(4, [4, 3]), 1),
    "C = 513": (oracles.real_tokens(3, [3, 2]), 513),  # no multiple of any vector's width
}
CASES = pytest.mark.parametrize(("valid", "channels"), REAL.values(), ids=REAL)


def definition(valid, eps=1e-5):
    def norm(x, weight, bias):
        columns = []
        for sentence, real in zip(x.unbind(1), valid.unbind(1), strict=True):
            y = torch.zeros_like(sentence)
            if real.any():
                y[real] = oracles.batch_norm(sentence[real], weight, bias, eps)[0]
            columns.append(y)
        return torch.stack(columns, 1)

    return norm


@CASES
@pytest.mark.parametrize("eps", [1e-5, 0.5])
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations, over the standard
# deviation of two or three tokens.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (torch.float64, 1e-13)])
def test_agrees_with_the_definition(valid, channels, eps, dtype, tolerance):
    norm = randomise(InstanceNorm(channels, InstanceNormOptions(eps))).to(dtype)
    x = (1 + torch.randn(*valid.shape, channels)).to(dtype)
    assert_agrees(norm, definition(valid, eps), x, tolerance, valid)
    if valid.all():
        assert_agrees(norm, definition(valid, eps), x, tolerance)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
@pytest.mark.parametrize("where", ["x", "gradient"])
def test_whatever_lies_at_padding_changes_nothing(value, where):
    valid = oracles.real_tokens(4, [4, 0, 2, 1])
    norm = randomise(InstanceNorm(5))
    x, upstream = torch.randn(2, 4, 4, 5)
    results = []
    for filling in (0.0, value):
        own, arriving = (
            tensor.masked_fill(~valid.unsqueeze(2), filling if name == where else 0)
            for name, tensor in (("x", x), ("gradient", upstream))
        )
        y = norm(own.requires_grad_(), ValidTokens(valid))
        results.append([y, *torch.autograd.grad(y, (own, *norm.parameters()), arriving)])
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("columns", [0, 3])
@pytest.mark.parametrize("sentences", [0, 2])
@pytest.mark.parametrize("left_pad", [False, True])
def test_more_padding_changes_nothing(columns, sentences, left_pad):
    lengths, length = [6, 2, 3], 6
    norm, results = randomise(InstanceNorm(4)), []
    real, arriving = torch.randn(2, 11, 4)
    for longer, more in ((length, []), (length + columns, [0] * sentences)):
        valid = oracles.real_tokens(longer, lengths + more, left_pad)
        x, upstream = torch.randn(2, *valid.shape, 4)
        # Sentence by sentence, so that a token is the same one in both batches.
        x.transpose(0, 1)[valid.t()] = real
        upstream.transpose(0, 1)[valid.t()] = arriving
        y = norm(x.requires_grad_(), ValidTokens(valid))
        y, dx, *rest = y, *torch.autograd.grad(y, (x, *norm.parameters()), upstream)
        y, dx = (tensor.transpose(0, 1)[valid.t()] for tensor in (y, dx))
        results.append([y, dx, *rest])
    for small, large in zip(*results, strict=True):
        assert torch.equal(large, small)  # the same rows


def test_sentences_do_not_see_each_other():
    norm, x = randomise(InstanceNorm(4)), torch.randn(5, 3, 4)
    valid = oracles.real_tokens(5, [5, 2, 3])
    together = norm(x, ValidTokens(valid))
    for b, length in enumerate((5, 2, 3)):
        alone = norm(x[:length, b : b + 1])
        torch.testing.assert_close(together[:length, b : b + 1], alone, rtol=1e-5, atol=1e-5)


def test_a_sentence_of_one_token_gives_the_bias():
    norm = randomise(InstanceNorm(4))
    y = norm(1000 * torch.randn(3, 2, 4), ValidTokens(oracles.real_tokens(3, [3, 1])))
    assert torch.equal(y[0, 1], norm.bias)
    alone = norm(1000 * torch.randn(1, 2, 4))
    assert torch.equal(alone, norm.bias.expand_as(alone))


def test_a_batch_of_padding_has_zero_gradients():
    norm = randomise(InstanceNorm(4))
    x = torch.randn(3, 2, 4, requires_grad=True)
    y = norm(x, ValidTokens(torch.zeros(3, 2, dtype=torch.bool)))
    assert torch.equal(y, torch.zeros_like(y))
    for gradient in torch.autograd.grad(y, (x, *norm.parameters()), torch.randn_like(y)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_evaluation_is_training():
    norm, x = randomise(InstanceNorm(4)), torch.randn(5, 3, 4)
    tokens = ValidTokens(oracles.real_tokens(5, [5, 2, 3]))
    assert torch.equal(norm.train()(x, tokens), norm.eval()(x, tokens))


def test_large_mean_leaves_the_variance_right():
    x, valid = 1000 + 0.1 * torch.randn(500, 2, 3), oracles.real_tokens(500, [500, 100])
    y = InstanceNorm(3)(x, ValidTokens(valid)).double()
    exact = definition(valid)(x.double(), 1, 0)
    # Sums are made in parts: of some 60 additions in a row, each is off by 6e-8 of 1000 at most. So
    # the fp32 mean is off by 4e-3, over a standard deviation of 0.1.
    torch.testing.assert_close(y[valid], exact[valid], rtol=0, atol=0.04)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
@pytest.mark.parametrize("masked", [True, False])
def test_half_precision_rounds_nothing_but_results(dtype, cast, masked):
    valid = oracles.real_tokens(40, [40, 25, 7]) if masked else None
    norm = randomise(InstanceNorm(6))
    assert_half_rounds_once(norm, 3 + 2 * torch.randn(40, 3, 6), dtype, cast, valid)


def test_sums_do_not_overflow_in_half_precision():
    x = torch.tensor([1000.0, -1000.0]).repeat(200).view(400, 1, 1).half()  # square: over 65504
    y = InstanceNorm(1).half()(x)
    torch.testing.assert_close(y.abs(), torch.ones_like(y), rtol=1e-3, atol=0)


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_refuses_activations_without_sentences(shape, masked):
    tokens = ValidTokens(torch.ones(shape[:-1], dtype=torch.bool)) if masked else None
    with pytest.raises(ValueError, match=r"\(T, B, C\).*\(N, C\).*BatchLayout"):
        InstanceNorm(4)(torch.randn(shape), tokens)


def test_refuses_tokens_of_another_shape():
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3, 4\)"):
        InstanceNorm(4)(torch.randn(2, 3, 4), ValidTokens(oracles.real_tokens(3, [3, 2])))


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan")])
def test_refuses_eps(eps):
    with pytest.raises(ValueError, match=f"--norm-instance-eps.*positive.*{eps}"):
        InstanceNormOptions(eps=eps)
