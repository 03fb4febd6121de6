"""Attention of rows, against one that takes sentence by sentence."""

import math
import random

import pytest
import torch
from fairseq.modules import MultiheadAttention

import by_sentence
from rbn_fairseq.models.attention import _FEW_AND_LONGER, PackedAttention, cut_groups
from rbn_fairseq.norms import lay_out
from small_models import assert_alike, assert_same_gradients, gradients, real_tokens

SEEDS = pytest.mark.parametrize("seed", range(12))


@pytest.fixture(autouse=True, params=_FEW_AND_LONGER)
def limits(request, monkeypatch):
    """Groups as on a CPU, and as on a GPU."""
    monkeypatch.setitem(_FEW_AND_LONGER, "cpu", _FEW_AND_LONGER[request.param])
    return _FEW_AND_LONGER["cpu"]


def some_lengths(seed):
    """Lengths of both sides of a batch, of one of several kinds."""
    draw = random.Random(seed)
    longest = draw.choice([3, 9, 60])
    count = draw.choice([1, 2, 7, 40])
    least = draw.choice([0, 1])
    source = [draw.randint(least, longest) for _ in range(count)]
    near = draw.random() < 0.5
    target = [
        max(least, one + draw.randint(-2, 2)) if near else draw.randint(least, longest)
        for one in source
    ]
    return source, target


@pytest.mark.parametrize("seed", range(200))
def test_groups_are_all_sentences_in_order(limits, seed):
    source, target = map(list, zip(*sorted(zip(*some_lengths(seed), strict=True)), strict=True))
    cuts = cut_groups(source, target, *limits)
    assert cuts[0] == 0 and cuts[-1] == len(source)
    assert all(one < other for one, other in zip(cuts[:-1], cuts[1:], strict=True))
    for first, end in zip(cuts[:-1], cuts[1:], strict=True):
        # What has nothing to attend to is apart: a softmax over nothing is NaN.
        assert (source[first] == 0) == (source[end - 1] == 0)


def test_no_sentence_is_one_group_of_none(limits):
    assert cut_groups([], [], *limits) == [0, 0]


def test_a_gpu_gets_few_large_groups():
    lengths = [length for length in range(1, 65) for _ in range(4)]  # 16,640 rows of both sides
    assert len(cut_groups(lengths, lengths, 256, 1.25)) > 50
    assert len(cut_groups(lengths, lengths, 4096, math.inf)) < 10


@pytest.mark.parametrize(
    "source, target",
    [
        ([25] * 40 + [1000], [25] * 40 + [1000]),
        ([2] * 1000 + [9], [2] * 1000 + [400]),
        ([20] * 100, [10] * 99 + [400]),
        ([20] * 100, [10] * 50 + [400] * 50),
    ],
)
def test_no_group_is_mostly_padding(source, target, limits):
    cuts = cut_groups(source, target, *limits)
    for first, end in zip(cuts[:-1], cuts[1:], strict=True):
        padded = (end - first) * (max(source[first:end]) + max(target[first:end]))
        assert padded <= max(
            4 * limits[0], 1.25 * (sum(source[first:end]) + sum(target[first:end]))
        )


def module(heads=2, memory=16):
    own = {"kdim": memory, "vdim": memory, "encoder_decoder_attention": True}
    attention = MultiheadAttention(16, heads, **(own if memory != 16 else {}))
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return attention.double()


def problem(source, target, memory=16):
    """Layouts, and padded activations of both sides."""
    masks = [real_tokens(lengths) for lengths in (source, target)]
    layouts = lay_out(*masks)
    x = torch.randn(*masks[1].shape, 16, dtype=torch.double, requires_grad=True)
    other = torch.randn(*masks[0].shape, memory, dtype=torch.double, requires_grad=True)
    return layouts, masks, x, other


def one_by_one(attention, x, memory, queries, keys, causal):
    """Padded ``(B, T, C)``, 0 at padding, and the weights of every sentence."""
    y = torch.zeros(*queries.shape, 16, dtype=torch.double)
    every = []
    for row, (own, other) in enumerate(zip(queries, keys, strict=True)):
        joined = torch.zeros(int(own.sum()), 16, dtype=torch.double)  # nothing to attend to
        weights = None
        if other.any():
            q = by_sentence.linear(attention.q_proj, x[row][own])
            k, v = (
                by_sentence.linear(part, memory[row][other])
                for part in (attention.k_proj, attention.v_proj)
            )
            joined, weights = by_sentence.attend(q, k, v, attention.num_heads, causal)
        y = y.index_put(
            (torch.tensor(row), own.nonzero()[:, 0]), by_sentence.linear(attention.out_proj, joined)
        )
        every.append(weights)
    return y, every


def assert_attends(attention, found, x, memory, layout, expected):
    """Outputs at real tokens, and gradients of a random sum of them."""
    assert_alike(layout.unpack(found), expected, "output")
    arriving = torch.randn_like(expected)
    actual = torch.autograd.grad(
        (found * layout.pack(arriving)).sum(), (x, memory), retain_graph=True, allow_unused=True
    )
    exact = torch.autograd.grad(
        (expected * layout.unpack(layout.pack(arriving))).sum(), (x, memory), retain_graph=True,
        allow_unused=True,
    )  # fmt: skip
    for one, other, what in zip(actual, exact, ("queries", "keys"), strict=True):
        if other is not None:
            assert_alike(one, other, what, noise=1e-13)
    assert_same_gradients(
        gradients(attention, (found * layout.pack(arriving)).sum()),
        gradients(attention, (expected * layout.unpack(layout.pack(arriving))).sum()),
    )


@pytest.mark.parametrize("way", ["source", "target, causal", "target, full context"])
@SEEDS
def test_within(seed, way):
    (own, other), masks, x, memory = problem(*some_lengths(seed))
    attention, causal = module(heads=[1, 2, 8][seed % 3]), way == "target, causal"
    if way == "source":
        layout, mask, x, packed = own, masks[0], memory, PackedAttention(own)
    else:
        layout, mask, packed = other, masks[1], PackedAttention(own, other, causal=causal)
    found = packed.within(attention, layout.pack(x))
    expected, _ = one_by_one(attention, x, x, mask, mask, causal)
    assert_attends(attention, found, x, x, layout, expected)


@pytest.mark.parametrize("width", [16, 10])
@SEEDS
def test_across(seed, width):
    source, target = some_lengths(seed)
    (own, other), (keys, mask), x, memory = problem(source, target, width)
    attention = module(4, width)
    packed = PackedAttention(own, other, own.pack(memory))
    found, weights = packed.across(attention, other.pack(x), weights=True)
    expected, every = one_by_one(attention, x, memory, mask, keys, False)
    assert_attends(attention, found, x, memory, other, expected)
    assert not weights.requires_grad and weights.shape == (sum(target), 4, max(source))
    rows = other.unpack(weights)
    for row, exact in enumerate(every):
        own_weights = rows[row][mask[row]].transpose(0, 1)  # (heads, T, S)
        assert not own_weights[..., source[row] :].any()
        if exact is not None:
            torch.testing.assert_close(
                own_weights[..., : source[row]].double(), exact, rtol=0, atol=1e-6
            )  # they are fp32, as fairseq's
    assert packed.across(attention, other.pack(x), weights=False)[1] is None


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_without_rows_every_projection_has_a_gradient(lengths):
    (own,), attention = lay_out(real_tokens(lengths)), module()
    rows = torch.zeros(0, 16, dtype=torch.double, requires_grad=True)
    PackedAttention(own).within(attention, rows).sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is not None and parameter.grad.eq(0).all(), name


def test_the_mean_over_dropouts_is_attention_without():
    """That dropout is random, and of training alone, is `test_transformer.py`'s."""
    (own, other), _, x, memory = problem([5, 5, 9], [4, 7, 2])
    attention = MultiheadAttention(16, 2, dropout=0.5).double()
    packed = PackedAttention(own, other, own.pack(memory))

    def draw():
        return packed.across(attention, other.pack(x), False)[0]

    attention.eval()
    exact = draw()
    attention.train()
    draws = torch.stack([draw() for _ in range(500)])
    error = (draws.mean(0) - exact).abs() / draws.std(0) * 500**0.5
    assert error.max() < 5  # of 208 nearly normal values, each 1 on average
