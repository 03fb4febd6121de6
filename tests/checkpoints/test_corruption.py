"""Checkpoints with random damage: refused, or read as they were saved.

RBN_DAMAGED_FILES and RBN_SEED try others than the few that are always the same.
"""

import argparse
import json
import os
import random
from collections import Counter

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from rbn_fairseq.checkpoints import files
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint

FILES = int(os.environ.get("RBN_DAMAGED_FILES", 120))
SEED = int(os.environ.get("RBN_SEED", 1))


def truncate(data, start, size, rng):
    del data[start:]


def flip(data, start, size, rng):
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero(data, start, size, rng):
    data[start : start + size] = bytes(len(data[start : start + size]))


def overwrite(data, start, size, rng):
    data[start : start + size] = rng.randbytes(len(data[start : start + size]))


def insert(data, start, size, rng):
    data[start:start] = rng.randbytes(size)


def repeat(data, start, size, rng):
    data += data[:start]


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
    """Whether two checkpoints hold the same, of the same types."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):  # of a class of ours
        return one.dtype == other.dtype and np.array_equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.equal(other)
    if isinstance(one, DictConfig):
        try:
            return one == other
        except Exception:  # damage may have taken what it compares by
            return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def damage(directory):
    """Damage checkpoints; return how many were refused, and what was read wrongly."""
    rng, counts, wrong = random.Random(SEED), Counter(files=FILES), []
    for number in range(FILES):
        path, saved = directory / "checkpoint.pt", state(rng)
        write_checkpoint(path, saved)
        kind, data = rng.choice(DAMAGES), bytearray(path.read_bytes())
        kind(data, rng.randrange(len(data)), rng.choice((1, 8, 64, 512)), rng)
        path.write_bytes(data)
        try:
            read = read_checkpoint(path)
        except ValueError:
            counts["refused"] += 1
            continue
        counts["read as saved"] += 1
        if not same(read, saved):
            wrong.append(f"{number}: {kind.__name__}")
    return counts, wrong


def test_damaged_files_are_refused_or_read_as_saved(tmp_path):
    counts, wrong = damage(tmp_path)
    print(f"\n{json.dumps({**counts, 'mismatches': wrong})}")
    assert not wrong
    assert counts["refused"] > counts["read as saved"] > 0


def test_wrong_reading_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "is_whole", lambda path: True)  # checksums not looked at
    _, wrong = damage(tmp_path)
    assert wrong
