"""Prints how large a run's weights are, epoch by epoch, as JSON lines.

Euclidean norms over all weights of a kind: embeddings; of encoder and decoder the gains and biases
of norms, queries and keys, values and output projections, feed-forward, biases of linear layers.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import rbn_fairseq.checkpoints  # noqa: F401  (lets torch read fairseq's files)
from rbn_fairseq.checkpoints.files import epoch_checkpoints, read_checkpoint
from rbn_fairseq.norms.population import split_statistics

SHARED = ("decoder.embed_tokens.weight", "decoder.output_projection.weight")  # the encoder's


def kind(name: str) -> str:
    """Return the kind of a weight by its name in the model."""
    side, *_, module, which = name.split(".")
    if "embed" in name:
        return "embeddings"
    if "norm" in name:  # of a composition's parts the module is a number
        return f"{side} norms' {'gain' if which == 'weight' else 'bias'}"
    if which == "bias":
        return f"{side} biases"
    if module in ("q_proj", "k_proj"):
        return f"{side} queries and keys"
    return f"{side} {'feed-forward' if module.startswith('fc') else 'values and outputs'}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    for epoch, path in epoch_checkpoints(parser.parse_args().run).items():
        squares: dict[str, float] = defaultdict(float)
        weights, _ = split_statistics(read_checkpoint(path)["model"])
        for name, value in weights.items():
            if name.endswith((".weight", ".bias")) and name not in SHARED:
                squares[kind(name)] += float(value.double().square().sum())
        norms = {name: round(square**0.5, 3) for name, square in sorted(squares.items())}
        print(json.dumps({"epoch": epoch, **norms}))
