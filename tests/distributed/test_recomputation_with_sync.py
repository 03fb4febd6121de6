"""Synchronised statistics with `--checkpoint-activations`: collectives run again, in order."""

import contextlib

import pytest
import torch

from processes import counting_collectives
from rbn_fairseq.norms import dummy_batch
from small_models import BATCH, PRE, build, build_criterion, sample

PLACEMENTS = {"post": {}, "pre": PRE}
LENGTHS = [  # by step, then by rank: one rank alone has pads; both; rank 1 runs a dummy batch
    [[3, 2], [4, 4]],
    [[5, 1], [2, 3]],
    [[4, 2], [3, 4]],
]


def steps(rank, calls, **options):
    """What every step leaves behind, and how many collectives the last one took."""
    criterion = build_criterion(rbn_mean_weight=0.3, rbn_std_weight=0.7)
    model = build(dropout=0.1, norm_sync=True, **BATCH, **options).double().train()
    seen = []
    for number, lengths in enumerate(LENGTHS):
        calls.clear()
        model.zero_grad()
        torch.manual_seed(rank)
        with dummy_batch() if (number, rank) == (2, 1) else contextlib.nullcontext():
            loss = criterion(model, sample((lengths[rank], lengths[rank])))[0]
            loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        seen.append([loss.detach(), *gradients, *(b.clone() for b in model.buffers())])
    return {"seen": seen, "calls": list(calls)}


def work(rank):
    calls = counting_collectives()
    return {
        (name, again): steps(rank, calls, checkpoint_activations=again, **options)
        for name, options in PLACEMENTS.items()
        for again in (False, True)
    }


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_two_processes_train_the_same(ranks, placement):
    for results in ranks:
        plain, again = results[placement, False], results[placement, True]
        for expected, actual in zip(plain["seen"], again["seen"], strict=True):
            assert all(map(torch.equal, actual, expected))
        # 10 batch norms: one collective each in forward and backward, and in the second forward.
        assert [plain["calls"].count(name) for name in set(plain["calls"])] == [10, 10]
        assert again["calls"].count("all_gather_into_tensor") == 20
        assert again["calls"].count("all_reduce") == 10
    assert ranks[0][placement, True]["calls"] == ranks[1][placement, True]["calls"]
