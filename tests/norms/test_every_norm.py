"""What holds for every registered norm."""

import copy
import io
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import oracles
from agreement import assert_half_rounds_once, randomise
from rbn_fairseq.norms import (
    NORMS,
    BatchNorm,
    BatchNormOptions,
    LengthBins,
    NormPlace,
    PopulationNorm,
    ValidTokens,
    build_norm,
    dummy_batch,
    freeze_statistics,
    lay_out,
    record_gaps,
)
from rbn_fairseq.norms.scope import repetition

BY_LENGTH = "batch by length"
EVERY = pytest.mark.parametrize("name", [*NORMS, BY_LENGTH])
RUNNING = pytest.mark.parametrize(
    "name",
    [*(name for name, norm in NORMS.items() if issubclass(norm, PopulationNorm)), BY_LENGTH],
)
C = 16


def build(name):
    if name != BY_LENGTH:
        return randomise(build_norm(name.split("+"), NormPlace(C, heads=4), {}))
    norm = BatchNorm(C, BatchNormOptions(length_bins=3))
    norm.population.set_bins(LengthBins(np.array([1.0, 2, 4, 6]), np.array([1.5, 3, 5])))
    return randomise(norm)


def gradients(norm, x, tokens, upstream):
    y = norm(x, tokens)
    return y, torch.autograd.grad(y, (x, *norm.parameters()), upstream)


@EVERY
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", oracles.MASKS.values(), ids=oracles.MASKS)
def test_rows_with_a_layout_are_the_padded_tensor_behind_the_door(name, training, mask):
    norm = build(name).double()
    norm(torch.randn(5, 2, C, dtype=torch.double))  # running statistics that are not the first
    norm.train(training)
    twin = copy.deepcopy(norm)
    x, upstream = torch.randn(2, *mask.shape, C, dtype=torch.double)
    packs = name in ("instance", BY_LENGTH) or (training and isinstance(norm, PopulationNorm))
    if not packs:  # every position is normalised by itself, padding included
        upstream = upstream.masked_fill(~mask.unsqueeze(2), 0)
    x.requires_grad_()
    y, (dx, *rest) = gradients(norm, x, ValidTokens(mask), upstream)
    (layout,) = lay_out(mask, time_first=True)
    rows = layout.pack(x.detach()).requires_grad_()
    theirs, (dr, *others) = gradients(twin, rows, layout, layout.pack(upstream))
    if packs:
        assert not y[~mask].any() and not dx[~mask].any()
    # fp64's rounding, where parameters' gradients are sums in another order.
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(layout.pack(y), theirs, **close)
    torch.testing.assert_close(dx, layout.unpack(dr), **close)
    torch.testing.assert_close(rest, others, **close)
    for one, other in zip(norm.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, **close)


@EVERY
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("left_pad", [False, True])
@pytest.mark.parametrize("columns, sentences", [(0, 0), (3, 0), (0, 2), (2, 1)])
def test_pads_never_matter(name, training, left_pad, columns, sentences):
    lengths, results = [6, 2, 1], []
    norm = build(name).double()
    real, arriving = torch.randn(2, sum(lengths), C, dtype=torch.double)
    for longer, more in ((6, []), (6 + columns, [0] * sentences)):
        valid = oracles.real_tokens(longer, lengths + more, left_pad)
        own = copy.deepcopy(norm).train(training)
        x = torch.randn(*valid.shape, C, dtype=torch.double)  # at padding: anything
        upstream = torch.zeros_like(x)  # the model reads nothing there
        x.transpose(0, 1)[valid.t()] = real
        upstream.transpose(0, 1)[valid.t()] = arriving
        y, (dx, *rest) = gradients(own, x.requires_grad_(), ValidTokens(valid), upstream)
        assert not dx[~valid].any()
        y, dx = (tensor.transpose(0, 1)[valid.t()] for tensor in (y, dx))
        results.append([y, dx, *rest, *own.buffers()])
    for small, large in zip(*results, strict=True):
        # fp64's rounding, in sums of another order; running statistics are fp32.
        torch.testing.assert_close(large, small, rtol=1e-6, atol=1e-9)


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_leaks_tells_whether_a_token_sees_later_ones(name, training):
    norm, x = build(name).train(training), torch.randn(5, 2, C)
    if training and isinstance(norm, PopulationNorm):
        pytest.skip("allowed in a decoder, with a warning: in generation nothing leaks")
    changed = x.clone()
    changed[3:] += 1
    earlier_move = not torch.equal(norm(x)[:3], norm(changed)[:3])
    assert earlier_move == bool(norm.leaks)


@EVERY
def test_a_token_by_itself_is_the_token_among_others(name):
    # What generation, token by token, rests on.
    norm, x = build(name).eval(), torch.randn(5, 2, C)
    if norm.leaks:
        pytest.skip("refused in a decoder")
    alone = torch.cat([norm(x[t : t + 1]) for t in range(5)])
    torch.testing.assert_close(alone, norm(x), rtol=1e-6, atol=1e-6)  # other kernels


@EVERY
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("lengths", [[1], [0, 1], [0, 0]], ids=str)
def test_few_tokens_are_finite(name, training, lengths):
    norm = build(name).train(training)
    valid = oracles.real_tokens(max(*lengths, 1), lengths)
    x = torch.zeros(*valid.shape, C, requires_grad=True)  # fairseq zeroes padding's embeddings
    y, grads = gradients(norm, x, ValidTokens(valid), torch.zeros_like(x))
    assert all(part.isfinite().all() for part in (y, *grads))


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_memory_layout_does_not_matter(name, training):
    norm, x = build(name).train(training), torch.randn(3, 6, C)
    twin = copy.deepcopy(norm)
    flipped = x.transpose(0, 1).requires_grad_()
    straight = x.transpose(0, 1).contiguous().requires_grad_()
    upstream = torch.randn(3, 6, C).transpose(0, 1)
    one = gradients(norm, flipped, None, upstream)
    other = gradients(twin, straight, None, upstream.contiguous())
    for part, same in zip([one[0], *one[1]], [other[0], *other[1]], strict=True):
        torch.testing.assert_close(part, same, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in (*NORMS, BY_LENGTH) if n != "layer"])  # torch's
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
@pytest.mark.parametrize("training", [True, False])
def test_half_precision_rounds_nothing_but_results(name, dtype, cast, training):
    valid = oracles.real_tokens(7, [7, 3, 5])
    assert_half_rounds_once(
        build(name).train(training), 1 + torch.randn(7, 3, C), dtype, cast, valid
    )


@EVERY
def test_under_autocast_all_is_in_fp32(name):
    norm, x = build(name), torch.randn(6, 3, C, requires_grad=True)
    tokens, upstream = ValidTokens(oracles.real_tokens(6, [6, 3, 5])), torch.randn(6, 3, C)
    twin = copy.deepcopy(norm)
    y, expected = gradients(twin, x, tokens, upstream)
    with torch.autocast("cpu", torch.bfloat16):
        casted, actual = gradients(norm, x, tokens, upstream)
    pairs = zip((casted, *actual, *norm.buffers()), (y, *expected, *twin.buffers()), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["instance", BY_LENGTH])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5, C), (2, 3, 4, C)], ids=str)
@pytest.mark.parametrize("masked", [True, False])
def test_norms_of_sentences_refuse_activations_without(name, training, shape, masked):
    tokens = ValidTokens(torch.ones(shape[:-1], dtype=torch.bool)) if masked else None
    norm = build(name).train(training)
    before = [buffer.clone() for buffer in norm.buffers()]
    with pytest.raises(ValueError, match=r"\(T, B, C\).*\(N, C\).*BatchLayout"):
        norm(torch.randn(shape), tokens)
    assert all(map(torch.equal, norm.buffers(), before))


@pytest.mark.parametrize(
    "name", [*(name for name, norm in NORMS.items() if not norm.leaks), "groupscale+power"]
)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_in_torchs_transformer(name, first):
    """Its fast path in evaluation would be layer norm, whatever the norms are."""
    layer = torch.nn.TransformerEncoderLayer(C, 4, 32, batch_first=True, norm_first=first)
    layer.norm1, layer.norm2 = build(name), build(name)
    layer.eval()
    x = torch.randn(3, 5, C)
    if first:
        h = layer.norm1(x)
        expected = x + layer.self_attn(h, h, h)[0]
        expected = expected + layer.linear2(layer.linear1(layer.norm2(expected)).relu())
    else:
        h = layer.norm1(x + layer.self_attn(x, x, x)[0])
        expected = layer.norm2(h + layer.linear2(layer.linear1(h).relu()))
    with torch.no_grad():
        encoder = torch.nn.TransformerEncoder(layer, 1).eval()
        for module in (layer, encoder):
            torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


@EVERY
def test_copies_and_saved_states_go_on_alike(name):
    norm, x = build(name), torch.randn(5, 2, C, requires_grad=True)
    with record_gaps():  # alive: their graph hangs on nothing in the module
        norm(x).sum().backward()
        copied = copy.deepcopy(norm)
    file = io.BytesIO()
    torch.save(norm.state_dict(), file)
    file.seek(0)
    loaded = build(name)
    loaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
    own = {tensor.data_ptr() for tensor in norm.state_dict().values()}
    for other in (copied, loaded):
        assert own.isdisjoint(tensor.data_ptr() for tensor in other.state_dict().values())
        twin = copy.deepcopy(norm)
        for training in (False, True):
            assert torch.equal(other.train(training)(x), twin.train(training)(x))
        assert all(map(torch.equal, other.state_dict().values(), twin.state_dict().values()))
    assert all(buffer.is_floating_point() for buffer in norm.buffers())


# Norms with running statistics, which stay whole whatever comes.


def step(name, x, valid, block=nullcontext):
    """A usual batch, then this one; the norm, its output, and its statistics before."""
    norm = build(name)
    norm(torch.randn(5, 3, C)).sum().backward()
    norm.zero_grad()
    before = [buffer.clone() for buffer in norm.buffers()]
    x.requires_grad_()
    with block():
        y = norm(x, ValidTokens(valid))
        (y * torch.randn_like(y))[valid].sum().backward()
    return norm, y[valid], before


def outlier(x):
    x[1, 0, 3] = 1e15  # its square is finite in fp32


def constant(x):
    x[..., 2], x[..., 5] = 0.0, 3.0


def equal(x):
    x[:] = x[0, 0].clone()


ATTACKS = {
    "one huge outlier": (outlier, [4, 2], (4, 2)),
    "constant channels": (constant, [4, 2], (4, 2)),
    "equal tokens": (equal, [4, 2], (4, 2)),
    "all padding": (lambda x: None, [0, 0], (4, 2)),
    "one token": (lambda x: None, [1, 0], (4, 2)),
    "T = 1": (lambda x: None, [1, 1, 1], (1, 3)),
    "one token in all": (lambda x: None, [1], (1, 1)),
    "tiny values": (lambda x: x.mul_(1e-30), [4, 2], (4, 2)),
}


@RUNNING
@pytest.mark.parametrize("attack", ATTACKS)
def test_gradients_are_finite(name, attack):
    spoil, lengths, shape = ATTACKS[attack]
    x, valid = torch.randn(*shape, C), oracles.real_tokens(shape[0], lengths)
    spoil(x)
    norm, y, before = step(name, x, valid)
    for value in (y, x.grad, norm.weight.grad, *norm.buffers()):
        assert value.isfinite().all()
    moved = [not torch.equal(*pair) for pair in zip(norm.buffers(), before, strict=True)]
    assert any(moved) == bool(valid.any())


VALUES = {"NaN": torch.nan, "infinite": torch.inf, "negative": -torch.inf, "too large": 1e30}
BLOCKS = {"dummy batch": dummy_batch, "frozen": freeze_statistics, "again": repetition}


@RUNNING
@pytest.mark.parametrize("case", [*VALUES, *BLOCKS, "no position"])
@pytest.mark.parametrize("lengths", [[4, 2], [4, 4]], ids=["bins", "one bin"])
def test_what_moves_no_statistics(name, case, lengths):
    x, valid = torch.randn(4, 2, C), oracles.real_tokens(4, lengths)
    x[1, 1, 3] = VALUES.get(case, 0)
    if case == "no position":
        x, valid = x[:0], valid[:0]
    norm, _, before = step(name, x, valid, BLOCKS.get(case, nullcontext))
    assert all(map(torch.equal, norm.buffers(), before))


@EVERY
def test_statistics_are_wide_whatever_makes_them(name):
    """A half default dtype, or a state in half precision that takes the place of the buffers."""
    wide = build(name)
    torch.set_default_dtype(torch.float16)
    try:
        norm = build(name)
    finally:
        torch.set_default_dtype(torch.float32)
    norm.load_state_dict({k: v.half() for k, v in wide.state_dict().items()}, assign=True)
    for made in (norm, copy.deepcopy(norm).half()):
        assert all(buffer.dtype == torch.float32 for buffer in made.buffers())
