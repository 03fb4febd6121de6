"""One of two processes has no memory for a batch: statistics go back, nobody waits for ever."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.tasks import FairseqTask
from torch import nn

from processes import on_processes
from rbn_fairseq.callbacks.running_statistics import RunningStatistics
from rbn_fairseq.norms import BatchNorm
from trainings import task


class Base(FairseqTask):
    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        model(sample).sum().backward()
        if criterion == "fails":
            raise RuntimeError("CUDA out of memory")

    def optimizer_step(self, optimizer, model, update_num):
        pass


def update(rank, model, fails):
    """fairseq's update of two micro-batches; rank 1 has no memory for those in ``fails``."""
    statistics, lost = task(RunningStatistics, base=Base), False
    model.zero_grad()
    for number in range(2):
        generator = torch.Generator().manual_seed(10 * rank + number)
        outcome = "fails" if rank == 1 and number in fails else "fine"
        try:
            statistics.train_step(torch.randn(6, 3, generator=generator), model, outcome, None, 0)
        except RuntimeError:
            lost = True
        if lost:  # for the rest of the update
            model.zero_grad()
    statistics.optimizer_step(SimpleNamespace(), model, 0)
    return [buffer.clone() for buffer in model.buffers()]


def work(rank):
    results = {
        f"{fails}": update(rank, nn.Sequential(BatchNorm(3)), fails) for fails in ((), (0,), (1,))
    }
    synchronised = nn.Sequential(BatchNorm(3, sync=True))
    try:
        update(0 if rank == 0 else 1, synchronised, (1,))
        results["message"] = ""
    except ValueError as error:
        results["message"] = str(error)
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_processes(work, tmp_path_factory.mktemp("ranks"))


def moved(rank):
    """Running statistics of a process by itself after its two micro-batches, by the formula."""
    mean, var = torch.zeros(3), torch.ones(3)
    for number in range(2):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(10 * rank + number))
        mean, var = 0.95 * mean + 0.05 * x.mean(0), 0.95 * var + 0.05 * x.var(0, correction=0)
    return mean, var


@pytest.mark.parametrize("fails", [(), (0,), (1,)], ids=str)
def test_one_of_two_processes(ranks, fails):
    first = torch.zeros(3), torch.ones(3)
    parts = moved(0), first if fails else moved(1)
    expected = [(one + other) / 2 for one, other in zip(*parts, strict=True)]
    for results in ranks:
        torch.testing.assert_close(results[f"{fails}"], expected)


def test_with_shared_statistics_it_stops(ranks):
    assert ranks[0]["message"] == ""
    assert "--norm-sync" in ranks[1]["message"] and "--max-tokens" in ranks[1]["message"]
