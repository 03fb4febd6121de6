"""Chunks of lines come back in their order, and are read only when they are needed."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rbn_fairseq.corpora.parallel import map_chunks


def slow_first(chunk):
    if chunk[0] == "0":
        time.sleep(0.05)
    return [f"<{line}>" for line in chunk]


# Chunks that the lines fill and do not fill; more chunks than may wait, and fewer.
@pytest.mark.parametrize("number", [0, 1, 6, 7, 25])
@pytest.mark.parametrize("ahead", [1, 4])
def test_order(number, ahead):
    lines = [str(i) for i in range(number)]
    with ThreadPoolExecutor(3) as executor:
        mapped = list(map_chunks(slow_first, iter(lines), executor, ahead, size=3))
    assert mapped == [f"<{line}>" for line in lines]


def test_lines_are_not_read_ahead_for_nothing():
    read = []

    def lines():
        for number in range(1000):
            read.append(number)
            yield str(number)

    with ThreadPoolExecutor(2) as executor:
        mapped = map_chunks(slow_first, lines(), executor, ahead=2, size=3)
        next(mapped)
        assert len(read) == 9  # three chunks: one that is returned, two that wait
        mapped.close()
