"""Edges between bins of the training's source lengths, for `--length-edges` of `rbn recalibrate`.

    python results/length_bins/edges.py BIN RULE BINS

BIN is fairseq's data directory, with `train.de-en.de`. RULE `tokens`: as many tokens in each bin;
`geometric`: bins as wide on a logarithmic scale; `quantiles` needs no edges. Prints 10.5:20.5:40.5.
"""

import sys

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset

from rbn_fairseq.norms.lengths import share_out


def main(directory: str, rule: str, bins: str) -> None:
    """Print the edges."""
    data = MMapIndexedDataset(f"{directory}/train.de-en.de")  # whose memory the sizes are
    lengths, counts = np.unique(data.sizes, return_counts=True)
    between = (lengths[:-1] + lengths[1:]) / 2
    widths = np.diff(np.log([lengths[0], *between, lengths[-1]]))
    weights = {"tokens": counts * lengths.astype(float), "geometric": widths}[rule]
    print(":".join(f"{between[begin - 1]:g}" for begin in share_out(weights, int(bins))))


main(*sys.argv[1:])
