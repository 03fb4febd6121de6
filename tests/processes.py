"""Several processes of one gloo group: of a function, and of fairseq-train."""

import multiprocessing
import subprocess
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing

import runs

WORLD = 2
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce")


def rendezvous():
    """Return where processes of one group meet, for its ``init_method``: a file, of them alone."""
    return f"file://{tempfile.mkdtemp()}/rendezvous"


def _work(rank, place, function, folder):
    dist.init_process_group(
        "gloo",
        init_method=place,
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
        _work, (rendezvous(), function, folder), nprocs=WORLD, start_method="forkserver"
    )
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def counting_collectives():
    """Return a list to which this process adds the name of every collective that it begins."""
    calls = []

    def counted(name, function):
        def call(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return call

    for name in COLLECTIVES:
        setattr(dist, name, counted(name, getattr(dist, name)))
    return calls


def launch(forked, data, save_dir, *options, world=2):
    """Train a small RBN model on gloo processes; return what they printed."""
    argv = runs.train_arguments(data, save_dir, *runs.RBN, "--max-tokens", 4000, *options)
    return train_on(world, forked, argv)


def train_on(world, forked, arguments):
    """Run fairseq-train on gloo processes; return what they printed."""
    argv = [
        *map(str, arguments), "--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo",
        "--distributed-world-size", str(world), "--distributed-init-method", rendezvous(),
        "--distributed-no-spawn", "--distributed-rank",
    ]  # fmt: skip
    processes = [
        subprocess.Popen(
            [forked / "fairseq-train", *argv, str(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    return "".join(outputs)
