"""Multipliers step on all processes alike, with the mean of what each has seen."""

import pytest
import torch

from processes import WORLD, on_processes
from rbn_fairseq.criterions.multipliers import Multipliers
from rbn_fairseq.criterions.penalty import relative_gaps
from rbn_fairseq.norms import BatchNorm, Gap

# By update and rank, the mean gaps of every micro-batch: of the first batch norm, and, where
# LayerDrop leaves it, of the second. No micro-batch at all where a process has lost its part.
SEEN = [
    [[(0.04, 0.02)], [(0.02,)]],
    [[(0.05,), (0.01,)], [(0.03,), (0.07,)]],
    [[], [(0.01, 0.08)]],
]


def held(rank):
    """The state after every update."""
    norms = torch.nn.ModuleList([BatchNorm(2), BatchNorm(3)])
    multipliers = Multipliers(norms, (0.02, 0.02), 0.1, 1.0)
    states = []
    for update in SEEN:
        for batch in update[rank]:
            gaps = []
            for norm, h in zip(norms, batch, strict=False):
                ones = torch.ones_like(norm.bias)
                n, std = torch.tensor(4), ones - norm.options.eps
                gaps.append(
                    Gap(norm, 1e-5, False, h * ones, std, n, 0 * ones, std, 0 * ones, std, 1.0)
                )
            multipliers.observe(gaps, relative_gaps(gaps))
        multipliers.step()
        states.append(multipliers.state_dict())
    return states


def test_processes_agree(tmp_path):
    states = on_processes(held, tmp_path)
    assert states[0] == states[1] and WORLD == 2
    first = [state["0"][2] for state in states[0]]
    second = [state["1"][2] for state in states[0]]
    # Smoothed by 0.05. The mean is over all micro-batches that showed the batch norm.
    start = (0.04**2 + 0.02**2) / 2
    s = 0.95 * start + 0.05 * (0.05**2 + 0.01**2 + 0.03**2 + 0.07**2) / 4
    assert first == pytest.approx([start, s, 0.95 * s + 0.05 * 0.01**2], rel=1e-3)
    s = 0.95 * 0.02**2 + 0.05 * 0.08**2
    assert second == pytest.approx([0.02**2, 0.02**2, s], rel=1e-3)
    assert states[0][0]["0"][0] == pytest.approx(0.1, rel=1e-3)  # the first is far above
