"""A process without memory for a batch: one of several stops, as the others wait for it."""

import pytest
from fairseq.tasks import FairseqTask
from torch import nn

from processes import on_processes
from trainings import task


class Base(FairseqTask):
    def train_step(self, *arguments, **settings):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")


def train():
    task(base=Base).train_step(None, nn.Linear(1, 1), None, None, 0)


def work(rank):
    if rank == 0:
        return ""
    with pytest.raises(ValueError) as raised:
        train()
    return str(raised.value)


def test_one_of_two_processes_stops(tmp_path):
    said = on_processes(work, tmp_path)[1]
    assert "others wait for it" in said and "--max-tokens" in said
    with pytest.raises(RuntimeError, match="CUDA out of memory"):  # which fairseq recovers from
        train()
