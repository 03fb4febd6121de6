"""Norms that share their statistics over several processes of the CPU."""

import multiprocessing
import warnings
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils._python_dispatch import TorchDispatchMode

from rbn_fairseq.bench.cases import Case
from rbn_fairseq.bench.machine import keep_freed_memory
from rbn_fairseq.bench.norms import Activations, Conditions, NormStack, time_norms
from rbn_fairseq.bench.rows import Row

__all__ = ["time_processes"]


class _Collectives(TorchDispatchMode):
    """Counts what is asked of other processes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace == "c10d"
        return func(*args, **kwargs or {})


def _count_collectives(name: str, case: Case, how: Conditions) -> tuple[int, int]:
    """Return the collectives of one norm on one batch, in its forward and in its backward."""
    stack = NormStack(name, replace(how, depth=1))
    x, upstream, layout = next(iter(Activations(case, how)))
    with _Collectives() as forward:
        y = stack(x, layout)
    with _Collectives() as backward:
        stack.backward(x, y, upstream)
    return forward.count, backward.count


def _work(rank: int, world: int, directory: str, case: Case, how: Conditions) -> None:
    keep_freed_memory()
    warnings.simplefilter("ignore", FutureWarning)  # torch renames a collective
    meeting = Path(directory, "meeting").as_uri()
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(minutes=10)
    )
    counts = {name: _count_collectives(name, case, how) for name in how.norms}
    rows = time_norms(case, how, "" if rank else f"{world} processes")
    if rank == 0:
        rows = [replace(row, collectives=counts.get(row.norm)) for row in rows]
        torch.save([asdict(row) for row in rows], Path(directory, "rows.pt"))
    dist.destroy_process_group()


def time_processes(case: Case, how: Conditions, world: int) -> list[Row]:
    """Time norms in ``world`` processes, each with the batches of the case; rows of the first.

    In training, and with statistics shared by those norms that can. Rows also tell how many
    collectives a norm takes, forward and backward. The floor has no communication.
    """
    # The processes are forks of one that has imported what takes seconds.
    multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])
    with TemporaryDirectory() as directory:
        arguments = (world, directory, case, replace(how, sync=True, training=True))
        torch.multiprocessing.start_processes(
            _work, arguments, nprocs=world, start_method="forkserver"
        )
        rows = torch.load(Path(directory, "rows.pt"), weights_only=True)
    return [Row(**row) for row in rows]
