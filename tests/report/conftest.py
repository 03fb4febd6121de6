import pytest
from run_directories import configuration, norm, write_run

from rbn_fairseq.report.compare import group_runs
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.runs import read_run


@pytest.fixture
def make(tmp_path):
    """Write a run, and read it."""

    def one(name, kind="LN", placement="Post-Norm", seed=1, changes=(), weights=(0.1, 0.01), **run):
        cfg = configuration(seed, **norm(kind, placement, weights) | dict(changes))
        return read_run(name, write_run(tmp_path / name, cfg, **run))

    return one


@pytest.fixture
def group():
    """The one group of runs."""

    def of(runs):
        (one,) = group_runs(runs)
        return one

    return of


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
    return [
        make("ln", nll=(5.0, 4.0, 3.0), bleu=30.0),
        make("bn", "BN", nll=(5.0, 3.75, 3.5), bleu=28.5, tid=(0.02, 0.10)),
        make("rbn", "RBN", nll=(5.0, 4.0, 2.75), bleu=31.0, tid=(0.01, 0.04)),
    ]
