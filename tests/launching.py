"""fairseq-train on several processes of this machine."""

import subprocess

import runs
from processes import free_port


def launch(forked, data, save_dir, *options, world=2):
    """Train a small RBN model on gloo processes; return what they printed."""
    argv = runs.train_arguments(
        data, save_dir, "--norm-encoder", "batch", "--rbn-mean-weight", 0.1,
        "--rbn-std-weight", 0.1, "--max-tokens", 4000, "--ddp-backend", "legacy_ddp",
        "--distributed-backend", "gloo", "--distributed-world-size", world,
        "--distributed-init-method", f"tcp://127.0.0.1:{free_port()}", "--distributed-no-spawn",
        *options,
    )  # fmt: skip
    processes = [
        subprocess.Popen(
            [forked / "fairseq-train", *argv, "--distributed-rank", str(rank)],
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
