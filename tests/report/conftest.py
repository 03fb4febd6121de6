import pytest
from run_directories import configuration, norm, write_run
from sections import ABOUT, make_sections

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import write_report
from rbn_fairseq.report.runs import read_run


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Directory of a report and the files that were written; read only."""
    directory = tmp_path_factory.mktemp("report")
    return directory, write_report(directory, "Title", make_sections(), ABOUT)


@pytest.fixture
def make(tmp_path):
    """Write a run; what comes back reads it, once all its files are there."""

    def one(name, kind="LN", placement="Post-Norm", seed=1, changes=(), weights=(0.1, 0.01), **run):
        cfg = configuration(seed, **norm(kind, placement, weights) | dict(changes))
        directory = write_run(tmp_path / name, cfg, **run)
        return lambda: read_run(name, directory)

    return one


@pytest.fixture
def blocks():
    """All blocks of a report by name; names are those of files, so they must be unique."""

    def of(runs):
        found = [block for section in sections(runs) for block in section.blocks]
        assert len({block.name for block in found}) == len(found)
        return {block.name: block for block in found}

    return of


@pytest.fixture
def main(make):
    made = [
        make("ln", nll=(5.0, 4.0, 3.0), bleu=30.0),
        make("bn", "BN", nll=(5.0, 3.75, 3.5), bleu=28.5, tid=(0.02, 0.10)),
        make("rbn", "RBN", nll=(5.0, 4.0, 2.75), bleu=31.0, tid=(0.01, 0.04),
             train={"rbn_mean": 4.0, "rbn_std": 2.0, "rbn_penalty": 0.5}),
    ]  # fmt: skip
    return [run() for run in made]
