"""Checkpoints with random damage: refused, or read as if there were none.

``python tests/corruption.py --files N --seed S`` prints totals; exit status 1 on a mismatch.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint

SIZES = (1, 8, 64, 512)


def truncate(data, rng):
    return data[: rng.randrange(len(data))]


def flip(data, rng):
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def zero(data, rng):
    start, size = rng.randrange(len(data)), rng.choice(SIZES)
    data[start : start + size] = bytes(len(data[start : start + size]))
    return data


def overwrite(data, rng):
    start, size = rng.randrange(len(data)), rng.choice(SIZES)
    data[start : start + size] = rng.randbytes(len(data[start : start + size]))
    return data


def insert(data, rng):
    start = rng.randrange(len(data))
    return data[:start] + rng.randbytes(rng.choice(SIZES)) + data[start:]


def repeat(data, rng):
    return data + data[: rng.randrange(len(data))]


DAMAGES = (truncate, flip, zero, overwrite, insert, repeat)


def state(rng):
    """Return a small checkpoint with every type that fairseq's and ours have."""
    values = torch.tensor([rng.gauss(0, 1) for _ in range(300)])
    array = values[:6].double().numpy()
    return {
        "args": argparse.Namespace(arch="rbn_transformer", betas=f"({rng.random()}, 0.98)"),
        "cfg": OmegaConf.create({"model": {"lr": [rng.random()]}, "lr": "${model.lr}"}),
        "model": {"weight": values.view(20, 15), "half": values[:7].half()},
        "optimizer_history": [{"num_updates": rng.randrange(1000), "lr_scheduler_state": {}}],
        "extra_state": {"val_loss": values[0].item(), "bleu": array[0], "names": ["a", None, True]},
        "last_optimizer_state": {
            "state": {0: {"step": 7, "exp_avg": values[::2], "exp_avg_sq": values[:150] ** 2}},
            "param_groups": [{"betas": (0.9, 0.98), "lr": 1e-3, "params": [0]}],
        },
        "task_state": {"counts": array.reshape(2, 3), "dictionaries": ["b7"]},
    }


def same(one, other):
    """Tell whether two checkpoints hold the same."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.equal(other)
    if isinstance(one, DictConfig):
        try:
            return one == other
        except Exception:  # damage may have taken what it compares by
            return False
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)  # of a class of ours
            and one.dtype == other.dtype
            and np.array_equal(one, other)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    return type(one) is type(other) and one == other


def damage(files, seed, directory):
    """Damage so many checkpoints; return how many were refused, and what was read wrongly."""
    rng, counts, wrong = random.Random(seed), Counter(), []
    for number in range(files):
        path, saved = directory / "checkpoint.pt", state(rng)
        write_checkpoint(path, saved)
        kind = rng.choice(DAMAGES)
        path.write_bytes(kind(bytearray(path.read_bytes()), rng))
        try:
            read = read_checkpoint(path)
        except ValueError:
            counts["refused"] += 1
            continue
        counts["read as saved"] += 1
        if not same(read, saved):
            wrong.append(f"{number}: {kind.__name__}")
    return counts, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        counts, wrong = damage(options.files, options.seed, Path(directory))
    print(json.dumps({"files": options.files, **counts, "mismatches": wrong}))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
