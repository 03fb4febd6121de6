"""Trainings that are killed at random moments, started again, and compared with whole ones.

    python tests/interruption.py --minutes 10 --seed 1

prints totals as a line of JSON, and exits 1 if a training was not the same.
"""

import argparse
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

import torch

import runs
from corpus import write_corpus
from rbn_fairseq.checkpoints.files import is_whole, read_checkpoint

KINDS = ("SIGTERM", "SIGKILL", "power cut")
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
    _log_flushes(Path(save_dir + ".flushed"))
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


def _log_flushes(log):
    """Note which files a power cut would leave whole."""
    fsync = os.fsync

    def logged(number):
        fsync(number)
        with log.open("a") as file:
            file.write(_version(os.fstat(number)) + "\n")

    os.fsync = logged


def _version(status):
    return f"{status.st_ino} {status.st_mtime_ns}"


def train(arguments, log, moment=None, kind="SIGKILL", limit=0):
    """Run ``rbn train`` as a fork; return its exit status, that of a signal below 0.

    ``limit`` is the size in bytes at which a file cannot grow, as on a full disk.
    """
    process = _forks.Process(target=_train, args=(arguments, log, moment, kind, limit))
    # The server, which the first one starts, finds what it preloads by the environment alone.
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        process.start()
    process.join(120)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def cut_power(save_dir, rng):
    """Cut off files whose content had not reached the disk, and some of the newest save's."""
    flushed = Path(f"{save_dir}.flushed")
    safe = set(flushed.read_text().splitlines()) if flushed.exists() else set()
    lost = {path for path in save_dir.iterdir() if _version(path.stat()) not in safe}
    saved = {path: _updates(path) for path in save_dir.glob("checkpoint*.pt") if is_whole(path)}
    newest = [path for path, updates in saved.items() if updates == max(saved.values())]
    if len(newest) < len(saved):  # an earlier save is left
        lost |= {path for path in newest if rng.random() < 0.5}
    for path in lost:
        os.truncate(path, rng.randrange(path.stat().st_size + 1))
    return sorted(path.name for path in lost)


def _updates(path):
    return read_checkpoint(path)["optimizer_history"][-1]["num_updates"]


def state(path):
    """Return what of a checkpoint does not depend on the clock or on the number of starts."""
    whole = read_checkpoint(path)
    extra = whole["extra_state"]
    return {
        **{part: whole[part] for part in ("model", "last_optimizer_state", "task_state")},
        **{part: extra.get(part) for part in ("train_iterator", "val_loss", "best")},
        "task": extra["TranslationRBNTask"],
        "updates": whole["optimizer_history"][-1]["num_updates"],
    }


def about(path):
    """Return what a run.json says but of each start, and of where the run is."""
    run = json.loads(path.read_text())
    run["config"]["checkpoint"].pop("save_dir")
    return {name: value for name, value in run.items() if name != "starts"}


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
    found = [f"{name}: in one only" for name in sorted((names[0] ^ names[1]) - spare)]
    for name in sorted(names[0] & names[1]):
        one, other = directory / name, reference / name
        if name == "train.log":  # of the clock, and of each start
            continue
        if name == "run.json":
            found += [name] * (about(one) != about(other))
        elif name.endswith(".jsonl"):
            found += [name] * (one.read_text() != other.read_text())
        elif not is_whole(one):
            found.append(f"{name}: damaged")
        else:
            parts = state(one), state(other)
            found += [f"{name}: {k}" for k in parts[0] if not same(parts[0][k], parts[1][k])]
    return found


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
            what = [kind, moment, status]
            if status < 0:
                self.interruptions[kind] += 1
                if kind == "power cut" and directory.exists():
                    what.append(cut_power(directory, self.rng))
            with log.open("a") as file:
                print("###", *what, file=file)
        status = train(arguments, log)
        if status == 2 and "Remove the file to start anew" in log.read_text():
            self.interruptions["nothing whole left"] += 1
            (directory / "checkpoint_last.pt").unlink()
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


def soak(minutes, seed):
    """Interrupt trainings for so many minutes; print totals, return whether all were the same."""
    rng, work = random.Random(seed), Path(tempfile.mkdtemp(prefix="interruption-"))
    write_corpus(work / "text", {"train": 1500, "valid": 60, "test": 61})
    runs.preprocess(work / "text", work / "data")
    trials = Trials(work / "data", work, rng)
    mismatches, count, end = [], 0, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        kind, setting = rng.choice(KINDS), rng.choice(list(SETTINGS))
        moments = [trials.moment(setting) for _ in range(rng.randint(1, 3))]
        found, directory = trials.run(kind, setting, moments)
        count += 1
        if found:
            mismatches.append({"kind": kind, "directory": str(directory), "differs": found})
            print(json.dumps(mismatches[-1]), file=sys.stderr, flush=True)
        else:
            shutil.rmtree(directory)
    totals = {"trials": count, "interruptions": trials.interruptions, "mismatches": mismatches}
    print(json.dumps(totals))
    if not mismatches:
        shutil.rmtree(work)
    return not mismatches


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    sys.exit(not soak(options.minutes, options.seed))
