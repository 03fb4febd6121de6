"""Norms of single tokens, and of single sentences, against their definitions in float64.

Batch norm and its kin have files of their own.
"""

import pytest
import torch

import oracles
from agreement import SHAPES, assert_agrees, randomise
from rbn_fairseq.norms import (
    NORMS,
    DynamicErf,
    DynamicTanh,
    GroupNorm,
    GroupScale,
    InstanceNorm,
    LayerNorm,
    NormPlace,
    PartialRMSNorm,
    RMSNorm,
    ScaleNorm,
    ValidTokens,
    build_norm,
)


def layer(eps, **_):
    def norm(x, weight, bias):
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps) * weight + bias

    return norm


def group(groups, eps):
    def norm(x, weight, bias):
        parts = x.split(x.shape[-1] // groups, dim=-1)
        return torch.cat([layer(eps)(part, 1, 0) for part in parts], dim=-1) * weight + bias

    return norm


def groupscale(groups, eps):
    def norm(x):
        parts = x.split(x.shape[-1] // groups, dim=-1)
        return torch.cat([rms(eps)(part, 1) for part in parts], dim=-1)

    return norm


def rms(eps, eps_mode="inside"):
    def norm(x, weight):
        mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
        if eps_mode == "inside":
            return x / torch.sqrt(mean_square + eps) * weight
        return x / (torch.sqrt(mean_square) + eps) * weight

    return norm


def prms(eps, p):
    def norm(x, weight):
        measured = {(6, 0.5): 3, (16, 0.0625): 1, (7, 0.3): 2, (7, 0.85): 5, (513, 0.0625): 32}
        k = x.shape[-1] if p == 1 else measured[x.shape[-1], p]  # int(C p)
        mean_square = sum(x[..., i] * x[..., i] for i in range(k)) / k
        return x / torch.sqrt(mean_square + eps).unsqueeze(-1) * weight

    return norm


def scale(eps):
    def norm(x, g):
        return g * x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=eps)

    return norm


def dyt(alpha_init):
    def norm(x, weight, bias, alpha):
        twice = torch.exp(2 * alpha * x)
        return weight * (twice - 1) / (twice + 1) + bias

    return norm


def derf(alpha_init):
    def norm(x, weight, bias, alpha, s):
        return weight * (1 - torch.special.erfc(alpha * x + s)) + bias

    return norm


DEFINITIONS = {
    "layer": layer, "group": group, "groupscale": groupscale, "rms": rms, "prms": prms,
    "scale": scale, "dyt": dyt, "derf": derf,
}  # fmt: skip
SQUASHING = ("dyt", "derf")
MODES = ("inside", "outside")
CASES = [  # name, shape, options but eps
    *(("layer", shape, {}) for shape in SHAPES if shape[-1] > 1),
    *(("rms", shape, {"eps_mode": mode}) for mode in MODES for shape in SHAPES),
    *(("scale", shape, {}) for shape in SHAPES),
    *((name, shape, {"alpha_init": 0.5}) for name in ("dyt", "derf") for shape in SHAPES),
    *(
        ("prms", shape, {"p": p})
        for shape, p in (
            ((5, 3, 6), 0.5), ((1, 1, 16), 0.0625), ((4, 3, 7), 0.3), ((4, 3, 7), 0.85),
            ((3, 513), 0.0625), ((4, 2, 1), 1.0), ((5, 3, 6), 1.0),
        )
    ),
    *(
        (name, shape, {"groups": groups})
        for name in ("group", "groupscale")
        for shape, groups in (
            ((5, 3, 6), 1), ((5, 3, 6), 2), ((1, 1, 6), 2), ((7, 513), 3), ((2, 1, 3, 8), 2),
        )
    ),
    ("groupscale", (4, 2, 1), {"groups": 1}),
    ("groupscale", (2, 1, 3, 4), {"groups": 4}),  # almost the sign
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "options"), CASES, ids=str)
@pytest.mark.parametrize("eps", [1e-5, 0.5])  # 0.5: its place shows
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations, over the deviation of a
# group of three channels.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 3e-14)])
def test_tokens_agree_with_the_definition(name, shape, options, eps, dtype, tolerance):
    options = options if name in SQUASHING else {**options, "eps": eps}
    built = {name: NORMS[name].options_type(**options)}
    norm = randomise(build_norm([name], NormPlace(shape[-1]), built)).to(dtype)
    x = torch.randn(shape)
    # Measured channels away from 0: few of them, all at 0, would make the others huge.
    x = x + x.sign() if name in ("prms", "groupscale") else x + 1
    assert_agrees(norm, DEFINITIONS[name](**options), x.to(dtype), tolerance)


@pytest.mark.parametrize("name", ["rms", "prms", "scale", "groupscale"])
def test_squares_do_not_overflow_in_half_precision(name):
    x = torch.full((2, 16), 1000.0, dtype=torch.float16)  # its square is beyond 65504
    y = build_norm([name], NormPlace(16, heads=2), {}).half()(x)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-3, atol=0)


PARAMETERS = {
    "layer": ["weight", "bias"],  # fairseq's names
    "batch": ["weight", "bias", "population.running_mean", "population.running_var"],
    "rms": ["weight"],
    "prms": ["weight"],
    "scale": ["g"],
    "group": ["weight", "bias"],
    "groupscale": [],
    "dyt": ["weight", "bias", "alpha"],
    "derf": ["weight", "bias", "alpha", "s"],
    "instance": ["weight", "bias"],
    "none": [],
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_and_first_values_of_parameters(name):
    state = build_norm([name], NormPlace(16), {}).state_dict()
    assert list(state) == PARAMETERS[name]
    for parameter, value in {"weight": 1, "bias": 0, "alpha": 0.5, "s": 0, "g": 4}.items():
        assert parameter not in state or (state[parameter] == value).all()


# Groups.


@pytest.mark.parametrize(("shape", "groups"), [((1, 1), 1), ((4, 2, 1), 1), ((3, 2, 4), 4)])
def test_a_group_of_one_channel_gives_the_bias(shape, groups):
    # Its mean is its value. F.group_norm refuses the first of these shapes.
    norm = randomise(GroupNorm(shape[-1], heads=groups))
    x = torch.randn(shape, requires_grad=True)
    y = norm(x)
    # torch computes x * scale + (bias - mean * scale): fp32's rounding over sqrt(eps).
    torch.testing.assert_close(y, norm.bias.expand_as(y), rtol=0, atol=2e-4)
    dx, dweight = torch.autograd.grad(y, (x, norm.weight), torch.randn_like(y))
    assert dx.abs().max() < 1e-2  # the same again
    torch.testing.assert_close(dweight, torch.zeros_like(dweight), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("groups", "heads", "expected"), [(0, 4, 4), (2, 4, 2), (0, 1, 1)])
@pytest.mark.parametrize("name", ["group", "groupscale"])
def test_groups_are_the_heads_by_default(name, groups, heads, expected):
    options = {name: NORMS[name].options_type(groups=groups)}
    norm = build_norm([name], NormPlace(8, heads), options)
    x = torch.randn(3, 2, 8)
    exact = group(expected, 1e-5)(x, 1, 0) if name == "group" else groupscale(expected, 1e-5)(x)
    torch.testing.assert_close(norm(x), exact)


@pytest.mark.parametrize(
    ("channels", "groups", "heads", "words"),
    [
        (12, 5, 1, ["C = 12", "is 5."]),
        (12, 13, 1, ["C = 12", "is 13."]),
        (513, 8, 1, ["C = 513", "is 8."]),
        (12, 0, 8, ["C = 12", "is 0", "8 attention heads"]),
    ],
)
@pytest.mark.parametrize("kind", [GroupNorm, GroupScale])
def test_refuses_groups_that_do_not_divide(kind, channels, groups, heads, words):
    with pytest.raises(ValueError) as error:
        kind(channels, kind.options_type(groups), heads)
    for word in (f"--norm-{kind.name}-groups", *words):
        assert word in str(error.value), error.value


# Root mean squares.


@pytest.mark.parametrize(("mode", "slope"), [("inside", 10), ("outside", 100)])
def test_a_token_of_zeros_has_a_gradient(mode, slope):
    # fairseq zeroes the embeddings of padding. Near 0 the norm is x / sqrt(eps), or x / eps.
    norm = RMSNorm(5, RMSNorm.options_type(0.01, mode))
    x = torch.zeros(2, 5, requires_grad=True)
    y = norm(x)
    y.backward(torch.ones_like(y))
    assert not y.any() and not norm.weight.grad.any()
    torch.testing.assert_close(x.grad, torch.full((2, 5), float(slope)))


@pytest.mark.parametrize("channels", [15, 49, 512])
def test_refuses_to_measure_no_channel(channels):
    options = PartialRMSNorm.options_type
    with pytest.raises(ValueError, match=rf"--norm-prms-p.*{channels} \* 0.001 .*`rms`"):
        PartialRMSNorm(channels, options(p=0.001))
    assert PartialRMSNorm(channels, options(p=1.01 / channels)).measured == 1


@pytest.mark.parametrize("length", [0.0, 0.01, 0.1, 1.0])
def test_short_tokens_are_not_made_longer_than_eps_says(length):
    norm = ScaleNorm(4, ScaleNorm.options_type(eps=0.1))
    x = torch.tensor([[length, 0, 0, 0]], requires_grad=True)
    y = norm(x)
    (dx,) = torch.autograd.grad(y[0, 0], x, retain_graph=True)
    (dg,) = torch.autograd.grad(y[0, 0], norm.g)
    assert y[0, 0].item() == pytest.approx(2 * length / max(length, 0.1))
    assert dg.item() == pytest.approx(length / max(length, 0.1))
    # At eps itself there are two derivatives.
    assert dx[0, 0].item() == pytest.approx(0 if length > 0.1 else 20) or length == 0.1


# Dynamic Tanh and erf.


@pytest.mark.parametrize("kind", [DynamicTanh, DynamicErf])
def test_alpha_begins_as_the_options_say(kind):
    for alpha in (0.25, 2):
        assert kind(5, kind.options_type(alpha_init=alpha)).alpha.tolist() == [alpha]


@pytest.mark.parametrize("kind", [DynamicTanh, DynamicErf])
def test_large_inputs_saturate(kind):
    x = torch.tensor([[1e4, -1e4]], dtype=torch.float16, requires_grad=True)
    y = kind(2).half()(x)
    assert y.tolist() == [[1, -1]]
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


# Sentences.


def instance(valid, eps=1e-5):
    def norm(x, weight, bias):
        columns = []
        for sentence, real in zip(x.unbind(1), valid.unbind(1), strict=True):
            y = torch.zeros_like(sentence)
            if real.any():
                y[real] = oracles.batch_norm(sentence[real], weight, bias, eps)[0]
            columns.append(y)
        return torch.stack(columns, 1)

    return norm


@pytest.mark.parametrize(("valid", "channels"), oracles.SENTENCES.values(), ids=oracles.SENTENCES)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
# As above, over the deviation of two or three tokens.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (torch.float64, 1e-13)])
def test_sentences_agree_with_the_definition(valid, channels, eps, dtype, tolerance):
    norm = randomise(InstanceNorm(channels, InstanceNorm.options_type(eps))).to(dtype)
    x = (1 + torch.randn(*valid.shape, channels)).to(dtype)
    assert_agrees(norm, instance(valid, eps), x, tolerance, valid)
    if valid.all():
        assert_agrees(norm, instance(valid, eps), x, tolerance)


def test_a_sentence_of_one_token_gives_the_bias():
    norm = randomise(InstanceNorm(4))
    y = norm(1000 * torch.randn(3, 2, 4), ValidTokens(oracles.real_tokens(3, [3, 1])))
    assert torch.equal(y[0, 1], norm.bias)
    alone = norm(1000 * torch.randn(1, 2, 4))
    assert torch.equal(alone, norm.bias.expand_as(alone))


def test_sums_over_a_sentence_do_not_overflow_in_half_precision():
    x = torch.tensor([1000.0, -1000.0]).repeat(200).view(400, 1, 1).half()  # square: over 65504
    y = InstanceNorm(1).half()(x)
    torch.testing.assert_close(y.abs(), torch.ones_like(y), rtol=1e-3, atol=0)


# Both.


@pytest.mark.parametrize("kind", [LayerNorm, GroupNorm, InstanceNorm])
def test_large_mean_leaves_the_variance_right(kind):
    """Sums of some 60 numbers of 1000 are off by 4e-3 in fp32, over a deviation of 0.1.

    By squares the variance would be off by 0.06 where it is 0.01.
    """
    if kind is InstanceNorm:
        x = 1000 + 0.1 * torch.randn(500, 2, 3)
        exact = instance(torch.ones(500, 2, dtype=torch.bool))(x.double(), 1, 0)
    else:
        x = 1000 + 0.1 * torch.randn(20, 3, 64)
        exact = layer(1e-5)(x.double(), 1, 0)
    torch.testing.assert_close(kind(x.shape[-1])(x).double(), exact, rtol=0, atol=0.04)
