"""The valid-token view, against boolean indexing; both ways of packing."""

import pytest
import torch

from rbn_fairseq.norms import BatchNorm, ValidTokens

WAYS = pytest.mark.parametrize("drop", [True, False], ids=["drop", "zero"])
MASKS = {
    "mixed": [[True, True], [True, False], [False, False]],
    "all real": [[True, True]],
    "all padding": [[False, False]],
    "one token": [[True]],
}
SHAPES = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def view_and_rows(mask, drop):
    valid = torch.tensor(mask)
    rows = torch.randn(valid.numel(), 3)
    rows[~valid.flatten()] = float("nan")  # whatever lies at padding must not come through
    return ValidTokens(valid, drop), rows, valid.flatten()


@WAYS
@SHAPES
def test_pack_keeps_real_rows_alone(mask, drop):
    tokens, rows, valid = view_and_rows(mask, drop)
    expected = rows[valid] if drop else torch.where(valid.unsqueeze(1), rows, 0)
    assert torch.equal(tokens.pack(rows), expected)


@WAYS
@SHAPES
def test_unpack_puts_rows_back_and_zeros_at_padding(mask, drop):
    tokens, rows, valid = view_and_rows(mask, drop)
    packed = tokens.pack(rows) + (0 if drop else 1 - valid.unsqueeze(1).float())  # dirty padding
    assert torch.equal(tokens.unpack_(packed), torch.where(valid.unsqueeze(1), rows, 0))


@WAYS
@SHAPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_count_is_a_tensor_like_the_rows(mask, drop, dtype):
    tokens, rows, valid = view_and_rows(mask, drop)
    count = tokens.count(tokens.pack(rows.to(dtype)))
    assert (count.item(), count.dtype, count.shape) == (valid.sum().item(), dtype, ())


@WAYS
@SHAPES
def test_clearing_puts_zeros_at_padding(mask, drop):
    tokens, rows, valid = view_and_rows(mask, drop)
    expected = torch.where(valid.unsqueeze(1), rows, 0)
    assert torch.equal(tokens.clear(rows), expected)
    assert rows[~valid].isnan().all()  # left as it was
    assert torch.equal(tokens.clear_(rows), expected)
    assert torch.equal(rows, expected)


def test_evaluation_asks_for_no_index(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "nonzero", None)
    BatchNorm(3).eval()(torch.ones(1, 2, 3), ValidTokens(torch.tensor([[True, False]])))


def test_zero_padding_works_in_place():
    tokens = ValidTokens(torch.tensor([True, False]), drop=False)
    packed = torch.ones(2, 3)
    assert tokens.zero_padding_(packed) is packed
    assert torch.equal(packed, torch.tensor([[1.0], [0.0]]).expand(2, 3))


def test_without_mask_every_position_is_real():
    tokens, rows = ValidTokens(), torch.randn(4, 3)
    tokens.check(rows)
    assert tokens.pack(rows) is rows
    assert tokens.clear(rows) is rows
    assert tokens.count(rows) == 4
    assert torch.equal(tokens.unpack_(rows.clone()), rows)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_padding_mask_is_batch_first_and_true_at_padding(dtype):
    padding = torch.tensor([[0, 0, 1], [0, 1, 1]], dtype=dtype)  # (B, T)
    expected = torch.tensor([[True, True], [True, False], [False, False]])  # (T, B)
    assert torch.equal(ValidTokens.from_padding_mask(padding).valid, expected)


def test_no_padding_mask_means_all_real():
    assert ValidTokens.from_padding_mask(None).valid is None


def test_none_of_has_no_real_token():
    x = torch.randn(4, 2, 3)
    tokens = ValidTokens.none_of(x)
    tokens.check(x)
    assert tokens.count(tokens.pack(x.view(-1, 3))) == 0


@pytest.mark.parametrize("shape", [(2, 3), (3,), (6,), (3, 2, 5)])
def test_refuses_another_shape(shape):
    with pytest.raises(ValueError, match=r"`tokens`.*`x` has shape \(3, 2, 5\)"):
        ValidTokens(torch.ones(shape, dtype=torch.bool)).check(torch.zeros(3, 2, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_refuses_masks_that_are_not_boolean(dtype):
    with pytest.raises(ValueError, match=f"`valid` must be a boolean.*{dtype}"):
        ValidTokens(torch.ones(2, 3, dtype=dtype))


def test_lengths_are_of_sentences():
    x = torch.zeros(3, 2, 5)
    mask = torch.tensor(MASKS["mixed"])
    assert ValidTokens(mask).lengths(x.shape, x.device).tolist() == [2, 1]
    assert ValidTokens().lengths(x.shape, x.device).tolist() == [3, 3]


@pytest.mark.parametrize("mask", [None, torch.ones(6, dtype=torch.bool)], ids=["none", "mask"])
def test_refuses_lengths_where_there_are_no_sentences(mask):
    with pytest.raises(ValueError, match=r"\(T, B, C\), but these have shape \(6, 5\)"):
        ValidTokens(mask).lengths(torch.Size([6, 5]), torch.device("cpu"))
