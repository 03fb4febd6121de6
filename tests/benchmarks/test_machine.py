"""The operations of an update, the rate of a matrix product, peaks of live memory."""

from functools import partial

import pytest
import torch

import machine
from machine import count_flops, peak_bytes, product_timer
from rbn_fairseq.models import attention
from runs import TINY
from trainers import draw, make_trainer, train

SIDE = 1000
ONE = 4 * SIDE**2  # bytes of one fp32 matrix


@pytest.mark.parametrize("criterion", ["cross_entropy", "label_smoothed_cross_entropy_rbn"])
def test_all_products_of_an_update_are_counted(data_bin, monkeypatch, criterion):
    # Attention in groups of equal lengths: no position in it is padding.
    monkeypatch.setitem(attention._FEW_AND_LONGER, "cpu", (0, 1))
    monkeypatch.setattr(attention, "_LONGER", 1)
    options = [*TINY, "--optimizer", "adam", "--max-tokens", "1000", "--criterion", criterion]
    trainer = make_trainer(str(data_bin), options, "cpu")
    ((batch,),) = draw(trainer, 1, 1)
    sides = (batch["net_input"][name] for name in ("src_tokens", "prev_output_tokens"))
    pad = trainer.task.source_dictionary.pad()
    length, out = (side.ne(pad).sum(1) for side in sides)  # of each sentence
    source, target = int(length.sum()), int(out.sum())
    width, hidden, layers = 64, 128, 2
    square, feed_forward = width * width, 2 * width * hidden
    linear = target * width * len(trainer.task.target_dictionary) + layers * (
        source * (4 * square + feed_forward)  # the encoder's
        + target * (4 * square + 2 * square + feed_forward) + source * 2 * square  # the decoder's
    )  # fmt: skip
    pairs = layers * width * int((length**2 + out**2 + out * length).sum())
    # The backward takes two products for each, and computes attention's scores again.
    products = 3 * linear + (2 + 5) * pairs
    assert count_flops(partial(train, trainer, [batch])) == 2 * products


def test_a_floor_is_at_the_rate_of_a_product_of_large_matrices(monkeypatch):
    timed = []
    monkeypatch.setattr(machine, "milliseconds", lambda action, device: timed.append(action) or 8.0)
    # A product of matrices of side 1024 takes 2 * 1024^3 operations.
    assert product_timer("cpu", "float32")(1024**3) == pytest.approx(4.0)
    assert count_flops(timed[0]) == 2 * 1024**3


def matrix():
    return torch.zeros(SIDE, SIDE)


def test_the_peak_is_that_of_what_lives_together():
    def run():
        first = matrix()
        second = first + 1
        del first, second
        return matrix()  # alone again

    assert 2 * ONE <= peak_bytes(run, "cpu") < 2.1 * ONE


def test_what_was_there_before_does_not_count():
    held = []
    assert peak_bytes(lambda: held.append(matrix()), "cpu") == pytest.approx(ONE, rel=0.01)
    assert peak_bytes(lambda: held[0].mul_(2), "cpu") < 0.01 * ONE

    def run():
        held.clear()
        return matrix()

    assert peak_bytes(run, "cpu") == pytest.approx(ONE, rel=0.01)
