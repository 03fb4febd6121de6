import fcntl
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import composing
import runs
from corpus import write_corpus, write_varied
from forked import forked_commands

# The tensors are small: threads would only make processes that share a machine wait.
torch.set_num_threads(1)


# What takes long and is one piece for a worker: first, so that no worker is left with it alone.
LONG = "end_to_end distributed quickstart scripts cli corpora report benchmarks".split()

# Directories and files of tests of the nightly tier, and of integration: those start processes,
# train. A test may name another tier by its mark.
NIGHTLY = {"fuzz", "gpu", "test_corruption", "test_interruption", "test_norms_train"}
INTEGRATION = set(
    "end_to_end distributed quickstart scripts benchmarks cli report corpora test_fold "
    "test_registration test_package test_without_fairseq "
    "test_examples test_adding_a_norm".split()
)
TRAINED = {"data_bin", "varied", "corpus", "rbn_run", "plain_run", "forked"}


def tier(item: pytest.Item) -> str:
    """Return a test's tier: core (in process, no training), integration, or nightly."""
    named = {"core", "integration", "nightly"} & {mark.name for mark in item.iter_markers()}
    if named:
        return named.pop()
    places = {*item.path.parent.parts, item.path.stem}
    if NIGHTLY & places:
        return "nightly"
    trained = TRAINED & set(getattr(item, "fixturenames", ()))
    return "integration" if trained or INTEGRATION & places else "core"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test's tier; begin with what takes long where workers share the tests."""
    for item in items:
        item.add_marker(tier(item))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not any(word in item.nodeid for word in LONG))


def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores: a third of the time a test waits for a process or the disk."""
    return max(1, 3 * len(os.sched_getaffinity(0)) // 2)


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers in every run of a test."""
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def logging_and_signals_as_before() -> Iterator[None]:
    """Commands set them up for their process; logging, here, to a stream that pytest will close."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def remembered_compositions() -> Iterator[None]:
    """Commands in this process do not compose the same options again, which takes half a second."""
    with composing.remembered():
        yield


@pytest.fixture(scope="session")
def forked():
    """Directory for PATH: the commands without the seconds that it takes to import fairseq."""
    with forked_commands() as tools:
        yield tools


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], object]], Path]:
    """Function that returns a directory which the first worker to ask for it makes for all."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def directory(name: str, make: Callable[[Path], object]) -> Path:
        path, finished = place / name, place / f"{name}.finished"
        with open(place / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                shutil.rmtree(path, ignore_errors=True)  # half made, where that failed
                make(path)
                finished.touch()
        return path

    return directory


@pytest.fixture(scope="session")
def corpus(shared) -> Path:
    """Parallel text of spelt-out numbers; 61 test sentences, not a multiple of fairseq's 8."""
    sizes = {"train": 1500, "valid": 60, "test": 61}
    return shared("text", lambda directory: write_corpus(directory, sizes))


@pytest.fixture(scope="session")
def data_bin(corpus: Path, shared) -> Path:
    """The corpus after fairseq-preprocess, with a joined dictionary."""
    return shared("data-bin", lambda directory: runs.preprocess(corpus, directory))


@pytest.fixture(scope="session")
def english(corpus: Path, shared) -> Path:
    """The corpus's English alone; after fairseq-preprocess, in the folder `bin`. Read only."""

    def make(directory: Path) -> None:
        directory.mkdir()
        options = []
        for split in ("train", "valid", "test"):
            shutil.copy(corpus / f"{split}.en", directory / split)
            options += [f"--{split}pref", directory / split]
        runs.call("preprocess", "--only-source", *options, "--destdir", directory / "bin")

    return shared("english", make)


@pytest.fixture(scope="session")
def varied(shared) -> Path:
    """Data of sentences of many lengths, and their text in the folder `text`.

    In tokens of the source, its end included: 3 to 22 to train on, 2 to 26 to validate on, and 2
    to 31 to translate.
    """
    words = {"train": range(2, 22), "valid": range(1, 26, 3), "test": range(1, 31, 4)}

    def make(directory: Path) -> None:
        write_varied(directory / "text", words)
        runs.preprocess(directory / "text", directory)

    return shared("varied", make)


@pytest.fixture(scope="session")
def rbn_run(data_bin: Path, shared) -> Path:
    """Save directory of a Post-Norm RBN model after 3 epochs. Read only."""
    options = (*runs.RBN, "--max-epoch", 3)
    return shared("rbn", lambda directory: runs.train(data_bin, directory, *options))


@pytest.fixture(scope="session")
def plain_run(data_bin: Path, shared) -> Path:
    """Save directory of fairseq's own `transformer`, task and criterion. Read only."""
    # Where batches need not be multiples of 8, fairseq too validates on every sentence.
    options = (*runs.PLAIN, "--required-batch-size-multiple", 1, "--max-update", 2)
    return shared("plain", lambda directory: runs.train(data_bin, directory, *options))
