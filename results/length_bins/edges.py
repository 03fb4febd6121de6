"""Edges between bins of the training's source lengths, for `--length-edges` of `rbn recalibrate`.

    python results/length_bins/edges.py BIN RULE BINS

BIN is fairseq's data directory, with `train.de-en.de`. RULE `tokens`: as many tokens in each bin;
`geometric`: bins as wide on a logarithmic scale; `quantiles` needs no edges. Prints 10.5:20.5:40.5.
"""

import sys

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset


def share_out(weights: np.ndarray, bins: int) -> list[int]:
    """Return where the second and later of parts of about equal sums begin."""
    begins, begin, left = [], 0, weights.sum()
    for following in range(bins - 1, 0, -1):
        sums = np.cumsum(weights[begin : len(weights) - following])
        taken = int(np.argmin(np.abs(sums - left / (following + 1))))
        begin += taken + 1
        left -= sums[taken]
        begins.append(begin)
    return begins


def main(directory: str, rule: str, bins: str) -> None:
    """Print the edges."""
    sizes = MMapIndexedDataset(f"{directory}/train.de-en.de").sizes
    lengths, counts = np.unique(sizes, return_counts=True)
    between = (lengths[:-1] + lengths[1:]) / 2
    widths = np.diff(np.log([lengths[0], *between, lengths[-1]]))
    weights = {"tokens": counts * lengths.astype(float), "geometric": widths}[rule]
    print(":".join(f"{between[begin - 1]:g}" for begin in share_out(weights, int(bins))))


main(*sys.argv[1:])
