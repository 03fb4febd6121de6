"""A function on two processes of one gloo group."""

import multiprocessing
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing

WORLD = 2


def free_port():
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _work(rank, port, function, folder):
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    torch.set_num_threads(1)
    torch.save(function(rank), folder / f"{rank}.pt")
    dist.destroy_process_group()


def on_processes(function, folder):
    """Return, by rank, what ``function(rank)`` of a module returns: tensors in dicts and lists."""
    # Both are forks of a process that has imported these, which takes seconds.
    multiprocessing.set_forkserver_preload(
        ["rbn_fairseq.callbacks", "rbn_fairseq.criterions", "rbn_fairseq.models"]
    )
    torch.multiprocessing.start_processes(
        _work, (free_port(), function, folder), nprocs=WORLD, start_method="forkserver"
    )
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
