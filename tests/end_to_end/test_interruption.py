"""A training that is stopped by force and started again ends as if it had not been.

`RBN_SOAK_MINUTES=10 RBN_SEED=1 pytest -n 0 -s -o faulthandler_timeout=0` interrupts at random
moments for so long, and prints totals as a line of JSON.
"""

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
import torch

import runs
from rbn_fairseq.checkpoints.files import is_whole, read_checkpoint

MINUTES = float(os.environ.get("RBN_SOAK_MINUTES", 0))
KINDS = ("SIGTERM", "SIGKILL")
# 7 updates an epoch; each setting leaves other checkpoints behind.
OPTIONS = (
    "--norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.1 --tid-batches 4 "
    "--train-subset valid --valid-subset test --max-tokens 100 --max-epoch 3 "
    "--conditioning-interval 4 --log-interval 1"
).split()
SETTINGS = {
    "epochs": (),
    "updates": ("--save-interval-updates", 6),
    "few": ("--no-epoch-checkpoints", "--save-interval-updates", 7, "--keep-interval-updates", 2),
    "best": ("--keep-best-checkpoints", 2, "--keep-last-epochs", 2),
    "patience": ("--patience", 2, "--maximize-best-checkpoint-metric"),  # the loss falls
}
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["ready"])


@dataclass(frozen=True)
class Moment:
    """When a training is interrupted: behind its n-th write into the save directory, or a time.

    Attributes:
        seconds: how long after the write or, without one, after the start.
        write: number of the write, from 1.
    """

    seconds: float
    write: int = 0


def _train(arguments, log, moment, kind, limit):
    """Run ``rbn train`` in this process, which is a fork."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    save_dir = arguments[arguments.index("--save-dir") + 1]
    if moment:
        _interrupt(save_dir, moment, kind)
    from rbn_fairseq.cli import main

    sys.argv = ["rbn", "train", *arguments]
    main()


def _interrupt(save_dir, moment, kind):
    number = signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL
    timer = threading.Timer(moment.seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    writes = 0

    def hook(event, args):
        nonlocal writes
        if event == "open" and str(args[0]).startswith(save_dir + "/") and "w" in (args[1] or ""):
            writes += 1
            if writes == moment.write:
                timer.start()

    if moment.write:
        sys.addaudithook(hook)
    else:
        timer.start()


def train(arguments, log, moment=None, kind="SIGKILL", limit=0):
    """Run ``rbn train`` as a fork; return its exit status, that of a signal below 0.

    ``limit`` is the size in bytes at which a file cannot grow, as on a full disk.
    """
    process = _forks.Process(target=_train, args=(arguments, log, moment, kind, limit))
    # The server, which the first one starts, finds what it preloads by the environment alone.
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        process.start()
    process.join(240)
    if process.is_alive():
        process.kill()
        process.join()
        pytest.fail(f"a training is not over after 240 s: see {log}")
    return process.exitcode


def state(path):
    """What of a file does not depend on the clock, the number of starts, or the directory."""
    if path.suffix == ".jsonl":
        return {"text": path.read_text()}
    if path.name == "run.json":
        run = json.loads(path.read_text())
        run["config"]["checkpoint"].pop("save_dir")
        return {name: value for name, value in run.items() if name != "starts"}
    whole = read_checkpoint(path)
    extra = whole["extra_state"]
    return {
        **{part: whole[part] for part in ("model", "last_optimizer_state", "task_state")},
        **{part: extra.get(part) for part in ("train_iterator", "val_loss", "best")},
        "task": extra["TranslationRBNTask"],
        "updates": whole["optimizer_history"][-1]["num_updates"],
    }


def same(one, other):
    """Compare nested structures of tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def differences(directory, reference, spare=frozenset()):
    """Say what in a save directory is not as in another one; nothing if they are the same.

    ``spare`` files may be in one only.
    """
    names = [{path.name for path in d.iterdir()} for d in (directory, reference)]
    differing = [f"{name}: in one only" for name in sorted((names[0] ^ names[1]) - spare)]
    for name in sorted(names[0] & names[1] - {"train.log"}):
        if name.endswith(".pt") and not is_whole(directory / name):
            differing.append(f"{name}: damaged")
            continue
        ours, theirs = state(directory / name), state(reference / name)
        parts = sorted(ours.keys() | theirs.keys())
        differing += [f"{name}: {p}" for p in parts if not same(ours.get(p), theirs.get(p))]
    return differing


@dataclass
class Trials:
    """Interrupted trainings of a few settings, beside a whole one of each."""

    data: Path
    work: Path
    rng: random.Random
    interruptions: Counter = field(default_factory=Counter)
    _whole: dict = field(default_factory=dict)

    def arguments(self, setting, save_dir):
        """Return the arguments of ``rbn train``."""
        arguments = runs.train_arguments(self.data, save_dir, *OPTIONS, *SETTINGS[setting])
        at = arguments.index("--user-dir")
        return arguments[:at] + arguments[at + 4 :]  # without --task, too: both are put in

    def whole(self, setting):
        """Return the save directory of a training that is not interrupted, and its seconds."""
        if setting not in self._whole:
            directory = self.work / f"whole-{setting}"
            start = time.monotonic()
            status = train(self.arguments(setting, directory), self.work / f"whole-{setting}.log")
            assert status == 0, f"see {self.work}"
            self._whole[setting] = directory, time.monotonic() - start
        return self._whole[setting]

    def run(self, kind, setting, moments):
        """Interrupt a training at moments; return what then differs, and its directory."""
        whole, _ = self.whole(setting)
        work = Path(tempfile.mkdtemp(prefix=f"{setting}-", dir=self.work))
        directory, log = work / "save", work / "log"
        arguments = self.arguments(setting, directory)
        for moment in moments:
            status = train(arguments, log, moment, kind)
            if status < 0:
                self.interruptions[kind] += 1
            with log.open("a") as file:
                print("###", kind, moment, status, file=file)
        status = train(arguments, log)
        if status:
            return [f"exit status {status}"], work
        spare = self._spare(directory, whole) if "--keep" in str(SETTINGS[setting]) else set()
        return differences(directory, whole, spare), work

    def _spare(self, directory, whole):
        """Return old checkpoints: fairseq removes them at a save, of which there may be no more."""
        names = {path.name for path in directory.iterdir()} - {p.name for p in whole.iterdir()}
        spare = {name for name in names if is_whole(directory / name)}
        self.interruptions["old checkpoints not removed"] += bool(spare)
        return spare

    def moment(self, setting):
        """Return a random moment."""
        if self.rng.random() < 0.3:
            return Moment(self.rng.uniform(0, self.whole(setting)[1]))
        return Moment(self.rng.choice((0, 1e-3, 5e-3, 0.1)), self.rng.randint(1, 20))


@pytest.fixture(scope="module")
def trials(data_bin, tmp_path_factory):
    rng = random.Random(int(os.environ.get("RBN_SEED", 1)))
    return Trials(data_bin, tmp_path_factory.mktemp("trials"), rng)


# Of the 29 writes of a training the 15th is a copy to checkpoint_best.pt, and the 25th is that of
# conditioning.jsonl.
@pytest.mark.parametrize(
    "kind, moment",
    [
        ("SIGTERM", Moment(0.05, write=7)),
        ("SIGKILL", Moment(0.001, write=15)),
        ("SIGKILL", Moment(0, write=25)),
    ],
)
def test_interruption(trials, kind, moment):
    before = trials.interruptions[kind]
    differing, directory = trials.run(kind, "updates", [moment])
    assert not differing, directory
    assert trials.interruptions[kind] == before + 1


@pytest.mark.skipif(not MINUTES, reason="for scripts/soak.sh")
def test_at_random_moments(trials):
    mismatches, count, end = [], 0, time.monotonic() + 60 * MINUTES
    trials.interruptions.clear()
    while time.monotonic() < end:
        kind, setting = trials.rng.choice(KINDS), trials.rng.choice(list(SETTINGS))
        moments = [trials.moment(setting) for _ in range(trials.rng.randint(1, 3))]
        differing, directory = trials.run(kind, setting, moments)
        count += 1
        if differing:
            mismatches.append({"kind": kind, "directory": str(directory), "differs": differing})
        else:
            shutil.rmtree(directory)
    totals = {"trials": count, "interruptions": trials.interruptions, "mismatches": mismatches}
    print(f"\n{json.dumps(totals)}")
    assert not mismatches


def test_full_disk(trials, tmp_path):
    whole, _ = trials.whole("updates")
    save_dir, logs = tmp_path / "save", [tmp_path / "full.log", tmp_path / "again.log"]
    shutil.copytree(whole, save_dir)
    for name in ("2", "3", "_2_12", "_3_18"):  # back to the end of epoch 1
        (save_dir / f"checkpoint{name}.pt").unlink()
    for name in ("best", "last"):
        shutil.copy(save_dir / "checkpoint1.pt", save_dir / f"checkpoint_{name}.pt")
    before = {path.name for path in save_dir.iterdir()}
    arguments = trials.arguments("updates", save_dir)

    size = (whole / "checkpoint_2_12.pt").stat().st_size
    assert train(arguments, logs[0], limit=size // 2) == 2
    (message,) = [line for line in logs[0].read_text().splitlines() if "rbn: error:" in line]
    assert "ulimit -f" in message and "resumes" in message
    assert {path.name for path in save_dir.iterdir() if path.suffix != ".tmp"} == before
    assert all(is_whole(path) for path in save_dir.glob("*.pt"))

    assert train(arguments, logs[1]) == 0
    assert not differences(save_dir, whole)
