"""Peaks of live memory."""

import pytest
import torch

from machine import peak_bytes

SIDE = 1000
ONE = 4 * SIDE**2  # bytes of one fp32 matrix


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
