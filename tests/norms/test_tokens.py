"""Rows of real tokens and the door for padded tensors, against plain loops over single tokens."""

import itertools

import pytest
import torch

import oracles
from rbn_fairseq.norms import BatchLayout, BatchNorm, InstanceNorm, ValidTokens, lay_out
from rbn_fairseq.norms import tokens as tokens_module

MASKS = {name: mask.t() for name, mask in oracles.MASKS.items()}  # (B, T)
EVERY = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
FIRST = pytest.mark.parametrize("time_first", [False, True], ids=["batch first", "time first"])


def order_of(*masks):
    """Sentences by their lengths in the first mask, then the next; else as they come."""
    return sorted(range(len(masks[0])), key=lambda b: (*(int(mask[b].sum()) for mask in masks), b))


def places_of(mask, order, time_first=False):
    """Flattened place, sentence by its rank, and offset of each real token, row by row."""
    found, (sentences, length) = [], mask.shape
    for rank, b in enumerate(order):
        real = [t for t in range(length) if mask[b, t]]
        for offset, t in enumerate(real):
            found.append((t * sentences + b if time_first else b * length + t, rank, offset))
    return found


def assert_lies(layout, mask, order, time_first=False):
    places = places_of(mask, order, time_first)
    counts = [int(mask[b].sum()) for b in order]
    assert layout.counts == layout.lengths.tolist() == counts
    assert layout.rows == len(places) == len(layout.index)
    columns = layout.index, layout.sentences, layout.offsets()
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == places
    assert layout.positions == (mask.t().shape if time_first else mask.shape)


@EVERY
@FIRST
def test_a_layout_is_that_of_a_loop(mask, time_first):
    (layout,) = lay_out(mask.t() if time_first else mask, time_first=time_first)
    assert_lies(layout, mask, order_of(mask), time_first)


@pytest.mark.parametrize("time_first", [False, True], ids=["batch first", "time first"])
@pytest.mark.parametrize("sentences", [1, 7, 40])  # sorts of few are stable by chance
def test_sides_have_one_stable_order(sentences, time_first):
    first, second = (torch.rand(sentences, length) < 0.5 for length in (3, 4))
    order = order_of(first, second)
    given = [side.t() if time_first else side for side in (first, second)]
    layouts = lay_out(*given, time_first=time_first)
    for layout, mask in zip(layouts, (first, second), strict=True):
        assert_lies(layout, mask, order, time_first)
    alone, both = lay_out(second)[0], lay_out(second, first)[0]
    assert_lies(alone, second, order_of(second))
    assert_lies(both, second, order_of(second, first))


@EVERY
@FIRST
@pytest.mark.parametrize("channels", [(), (3,), (2, 3)], ids=str)
def test_packing_and_putting_back(mask, time_first, channels):
    given = mask.t() if time_first else mask
    (layout,) = lay_out(given, time_first=time_first)
    padded = torch.randn(*given.shape, *channels).masked_fill(
        ~given.view(*given.shape, *[1] * len(channels)), torch.nan
    )
    rows = layout.pack(padded)
    flat = padded.flatten(0, 1)
    places = places_of(mask, order_of(mask), time_first)
    expected = [flat[place] for place, *_ in places]
    assert torch.equal(rows, torch.stack(expected) if expected else flat[:0])
    back = layout.unpack(rows)
    assert back.shape == padded.shape
    assert torch.equal(back, padded.nan_to_num())  # 0 at padding
    assert torch.equal(layout.pack(back), rows)


@EVERY
def test_sums_of_sentences(mask):
    (layout,) = lay_out(mask)
    rows = torch.randn(layout.rows, 3, dtype=torch.double)
    places = places_of(mask, order_of(mask))
    expected = torch.zeros(len(mask), 3, dtype=torch.double)
    for row, (_, rank, _) in zip(rows, places, strict=True):
        expected[rank] += row
    torch.testing.assert_close(layout.sums(rows), expected)


@pytest.mark.parametrize("shape", [(4, 3), (1, 1), (0, 2), (2, 0)], ids=str)
def test_without_padding_nothing_is_looked_at(shape):
    length, sentences = shape
    layout = BatchLayout.unpadded(torch.Size(shape), torch.device("cpu"))
    mask = torch.ones(sentences, length, dtype=torch.bool)
    assert_lies(layout, mask, range(sentences), time_first=True)
    meta = BatchLayout.unpadded(torch.Size(shape), torch.device("meta"))
    assert meta.index.is_meta and meta.lengths.is_meta


def test_a_layout_without_sentences():
    layout = BatchLayout.empty(torch.device("cpu"))
    assert layout.rows == 0 and layout.counts == []
    assert layout.lengths.shape == layout.sentences.shape == layout.offsets().shape == (0,)
    assert layout.sums(torch.zeros(0, 3)).shape == (0, 3)
    layout.check(torch.zeros(0, 3))


@pytest.mark.parametrize("shape", [(7, 5), (9, 5), (8,), (4, 2, 5), (0, 5)], ids=str)
def test_refuses_other_rows(shape):
    (layout,) = lay_out(torch.ones(4, 2, dtype=torch.bool))
    layout.check(torch.zeros(8, 5))
    with pytest.raises(ValueError, match="`tokens`.*8 rows.*`x` has shape") as error:
        layout.check(torch.zeros(shape))
    assert str(shape) in str(error.value)


# The door.


@EVERY
@pytest.mark.parametrize("kind", [BatchNorm, InstanceNorm])
def test_padding_is_zero_both_ways(mask, kind):
    valid = mask.t()
    norm = kind(3)
    torch.nn.init.normal_(norm.bias)  # so that nothing is 0 by itself
    x, upstream = torch.randn(2, *valid.shape, 3)
    results = []
    for filling in (0, torch.nan):  # whatever lies at padding changes nothing
        x, upstream = (part.masked_fill(~valid.unsqueeze(2), filling) for part in (x, upstream))
        y = norm(x.requires_grad_(), ValidTokens(valid))
        results.append([y, *torch.autograd.grad(y, (x, *norm.parameters()), upstream)])
        x = x.detach()
    assert all(map(torch.equal, *results))
    for value in results[1][:2]:
        assert not value[~valid].any()


def test_without_mask_and_in_evaluation_there_is_no_look(monkeypatch):
    monkeypatch.setattr(tokens_module, "lay_out", None)
    x, mask = torch.randn(4, 3, 5), MASKS["holes"].t()
    for norm, tokens in itertools.product((BatchNorm(5), InstanceNorm(5)), (None, ValidTokens())):
        norm(x, tokens)
    BatchNorm(5).eval()(x, ValidTokens(mask))


def test_one_view_serves_inference_and_then_gradients():
    norm, x = BatchNorm(5), torch.randn(4, 3, 5, requires_grad=True)
    tokens = ValidTokens(MASKS["holes"].t())
    with torch.inference_mode():
        norm(x, tokens)
    norm(x, tokens).sum().backward()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_padding_mask_is_batch_first_and_true_at_padding(dtype):
    padding = torch.tensor([[0, 0, 1], [0, 1, 1]], dtype=dtype)  # (B, T)
    expected = torch.tensor([[True, True], [True, False], [False, False]])  # (T, B)
    assert torch.equal(ValidTokens.from_padding_mask(padding).valid, expected)


def test_no_padding_mask_means_all_real():
    assert ValidTokens.from_padding_mask(None).valid is None


@pytest.mark.parametrize("shape", [(2, 3), (3,), (6,), (3, 2, 5)])
@pytest.mark.parametrize("kind", [BatchNorm, InstanceNorm])
@pytest.mark.parametrize("training", [True, False])
def test_refuses_another_shape(shape, kind, training):
    tokens = ValidTokens(torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"`tokens`.*`x` has shape \(3, 2, 5\)") as error:
        kind(5).train(training)(torch.zeros(3, 2, 5), tokens)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_refuses_masks_that_are_not_boolean(dtype):
    with pytest.raises(ValueError, match=f"`valid` must be a boolean.*{dtype}"):
        ValidTokens(torch.ones(2, 3, dtype=dtype))
