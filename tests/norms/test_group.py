"""Group norm and group scale of tokens, against their definitions and autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

from agreement import assert_agrees, assert_half_rounds_once, randomise
from rbn_fairseq.norms import (
    GroupNorm,
    GroupNormOptions,
    GroupScale,
    GroupScaleOptions,
    NormPlace,
    build_norm,
)

SIZES = [  # shape, G
    ((5, 3, 6), 1),
    ((5, 3, 6), 2),
    ((1, 1, 6), 2),
    ((7, 513), 3),  # 513 = 3 * 171: no vector's width divides either
    ((2, 1, 3, 8), 2),
]


def definition(groups, eps):
    def norm(x, weight, bias):
        parts = []
        for part in x.split(x.shape[-1] // groups, dim=-1):
            centred = part - part.mean(-1, keepdim=True)
            parts.append(centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps))
        return torch.cat(parts, dim=-1) * weight + bias

    return norm


@pytest.mark.parametrize(("shape", "groups"), SIZES, ids=str)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations, over the standard
# deviation of a group of three channels.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 3e-14)])
def test_agrees_with_the_definition(shape, groups, eps, dtype, tolerance):
    norm = randomise(GroupNorm(shape[-1], GroupNormOptions(groups, eps))).to(dtype)
    x = (1 + torch.randn(shape)).to(dtype)
    assert_agrees(norm, definition(groups, eps), x, tolerance)


@pytest.mark.parametrize(("shape", "groups"), [((1, 1), 1), ((4, 2, 1), 1), ((3, 2, 4), 4)])
def test_a_group_of_one_channel_gives_the_bias(shape, groups):
    # Its mean is its value. F.group_norm refuses the first of these shapes.
    norm = randomise(GroupNorm(shape[-1], GroupNormOptions(groups)))
    x = torch.randn(shape, requires_grad=True)
    y = norm(x)
    # torch computes x * scale + (bias - mean * scale): fp32's rounding over sqrt(eps).
    torch.testing.assert_close(y, norm.bias.expand_as(y), rtol=0, atol=2e-4)
    dx, dweight = torch.autograd.grad(y, (x, norm.weight), torch.randn_like(y))
    assert dx.abs().max() < 1e-2  # the same again
    torch.testing.assert_close(dweight, torch.zeros_like(dweight), rtol=0, atol=1e-3)


def test_one_group_is_layer_norm():
    x = torch.randn(4, 3, 6)
    torch.testing.assert_close(GroupNorm(6)(x), F.layer_norm(x, (6,)))


def test_large_mean_leaves_the_variance_right():
    x = 1000 + 0.1 * torch.randn(20, 3, 512)
    exact = definition(8, 1e-5)(x.double(), 1, 0)
    # A sum of 64 numbers in fp32, in any order, is off by 63 * 6e-8 of their size at most: the
    # mean by 4e-3, over a standard deviation of 0.1. By squares the variance would be off by 0.06
    # where it is 0.01.
    torch.testing.assert_close(GroupNorm(512, heads=8)(x).double(), exact, rtol=0, atol=0.04)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
def test_half_precision_rounds_nothing_but_results(dtype, cast):
    norm = randomise(GroupNorm(64, heads=4))
    assert_half_rounds_once(norm, 3 + 2 * torch.randn(20, 3, 64), dtype, cast)


@pytest.mark.parametrize(("groups", "heads", "expected"), [(0, 4, 4), (2, 4, 2), (0, 1, 1)])
def test_groups_are_the_heads_by_default(groups, heads, expected):
    norm = build_norm(["group"], NormPlace(8, heads), {"group": GroupNormOptions(groups)})
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(norm(x), definition(expected, 1e-5)(x, 1, 0))


@pytest.mark.parametrize(
    ("channels", "groups", "heads", "words"),
    [
        (12, 5, 1, ["C = 12", "is 5.", "4 and 6"]),
        (12, 13, 1, ["C = 12", "is 13.", "that do: 12."]),
        (513, 8, 1, ["C = 513", "is 8.", "3 and 9"]),
        (12, 0, 8, ["C = 12", "is 0", "heads: 8", "6 and 12"]),
    ],
)
def test_refuses_groups_that_do_not_divide(channels, groups, heads, words):
    with pytest.raises(ValueError) as error:
        GroupNorm(channels, GroupNormOptions(groups), heads)
    for word in ("--norm-group-groups", *words):
        assert word in str(error.value), error.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": -2}, ["--norm-group-groups", "at least 0", "-2"]),
        ({"eps": -1.0}, ["--norm-group-eps", "positive", "-1.0"]),
    ],
)
def test_refuses(options, words):
    with pytest.raises(ValueError) as error:
        GroupNormOptions(**options)
    assert all(word in str(error.value) for word in words), error.value


SCALE_SIZES = [  # shape, G
    ((5, 3, 6), 1),
    ((5, 3, 6), 3),
    ((1, 1, 6), 2),
    ((4, 2, 1), 1),
    ((7, 513), 3),  # 513 = 3 * 171: no vector's width divides either
    ((2, 1, 3, 4), 4),  # groups of one channel: almost the sign
]


def scale_definition(groups, eps):
    def norm(x):
        parts = x.split(x.shape[-1] // groups, dim=-1)
        return torch.cat(
            [part / torch.sqrt((part**2).mean(-1, keepdim=True) + eps) for part in parts], dim=-1
        )

    return norm


@pytest.mark.parametrize(("shape", "groups"), SCALE_SIZES, ids=str)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-14)])
def test_scale_agrees_with_the_definition(shape, groups, eps, dtype, tolerance):
    norm = GroupScale(shape[-1], GroupScaleOptions(groups, eps))
    x = torch.randn(shape)
    assert_agrees(norm, scale_definition(groups, eps), (x + x.sign()).to(dtype), tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scale_half_precision_rounds_nothing_but_results(dtype):
    norm = GroupScale(64, GroupScaleOptions(groups=4))
    assert_half_rounds_once(norm, 3 + 2 * torch.randn(20, 3, 64), dtype, cast=False)


def test_squares_do_not_overflow_in_half_precision():
    x = torch.full((2, 8), 1000.0, dtype=torch.float16)
    y = GroupScale(8, heads=2)(x)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-3, atol=0)


def test_has_no_parameters():
    assert not GroupScale(8).state_dict()


@pytest.mark.parametrize(("groups", "heads", "expected"), [(0, 4, 4), (2, 4, 2), (0, 1, 1)])
def test_scale_groups_are_the_heads_by_default(groups, heads, expected):
    options = {"groupscale": GroupScaleOptions(groups)}
    norm = build_norm(["groupscale"], NormPlace(8, heads), options)
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(norm(x), scale_definition(expected, 1e-5)(x))


def test_scale_refuses_groups_that_do_not_divide():
    with pytest.raises(ValueError, match=r"--norm-groupscale-groups.*C = 12.*is 5\..*4 and 6"):
        GroupScale(12, GroupScaleOptions(groups=5))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": -1}, ["--norm-groupscale-groups", "at least 0", "-1"]),
        ({"eps": 0.0}, ["--norm-groupscale-eps", "positive", "0.0"]),
    ],
)
def test_scale_refuses(options, words):
    with pytest.raises(ValueError) as error:
        GroupScaleOptions(**options)
    assert all(word in str(error.value) for word in words), error.value
