"""PowerNorm's layer scale, against the definition and autograd in float64."""

import pytest
import torch

from agreement import assert_agrees, assert_half_rounds_once
from rbn_fairseq.norms import GroupScale, GroupScaleOptions, NormPlace, build_norm

SIZES = [  # shape, G
    ((5, 3, 6), 1),
    ((5, 3, 6), 3),
    ((1, 1, 6), 2),
    ((4, 2, 1), 1),
    ((7, 513), 3),  # 513 = 3 * 171: no vector's width divides either
    ((2, 1, 3, 4), 4),  # groups of one channel: almost the sign
]


def definition(groups, eps):
    def norm(x):
        parts = x.split(x.shape[-1] // groups, dim=-1)
        return torch.cat(
            [part / torch.sqrt((part**2).mean(-1, keepdim=True) + eps) for part in parts], dim=-1
        )

    return norm


@pytest.mark.parametrize(("shape", "groups"), SIZES, ids=str)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-14)])
def test_agrees_with_the_definition(shape, groups, eps, dtype, tolerance):
    norm = GroupScale(shape[-1], GroupScaleOptions(groups, eps))
    x = torch.randn(shape)
    assert_agrees(norm, definition(groups, eps), (x + x.sign()).to(dtype), tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_nothing_but_results(dtype):
    norm = GroupScale(64, GroupScaleOptions(groups=4))
    assert_half_rounds_once(norm, 3 + 2 * torch.randn(20, 3, 64), dtype, cast=False)


def test_squares_do_not_overflow_in_half_precision():
    x = torch.full((2, 8), 1000.0, dtype=torch.float16)
    y = GroupScale(8, heads=2)(x)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-3, atol=0)


def test_has_no_parameters():
    assert not GroupScale(8).state_dict()


@pytest.mark.parametrize(("groups", "heads", "expected"), [(0, 4, 4), (2, 4, 2), (0, 1, 1)])
def test_groups_are_the_heads_by_default(groups, heads, expected):
    options = {"groupscale": GroupScaleOptions(groups)}
    norm = build_norm(["groupscale"], NormPlace(8, heads), options)
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(norm(x), definition(expected, 1e-5)(x))


def test_refuses_groups_that_do_not_divide():
    with pytest.raises(ValueError, match=r"--norm-groupscale-groups.*C = 12.*is 5\..*4 and 6"):
        GroupScale(12, GroupScaleOptions(groups=5))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": -1}, ["--norm-groupscale-groups", "positive", "heads", "-1"]),
        ({"eps": 0.0}, ["--norm-groupscale-eps", "positive", "0.0"]),
    ],
)
def test_refuses(options, words):
    with pytest.raises(ValueError) as error:
        GroupScaleOptions(**options)
    assert all(word in str(error.value) for word in words), error.value
