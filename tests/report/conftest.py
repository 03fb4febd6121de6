import pytest

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.groups import group_runs
from run_directories import run_maker


@pytest.fixture
def make(tmp_path):
    return run_maker(tmp_path)


@pytest.fixture
def group():
    """The one group of runs."""

    def one_group(runs):
        (one,) = group_runs(runs)
        return one

    return one_group


@pytest.fixture(scope="session")
def blocks():
    """All blocks of a report by name; names are those of files, so they must be unique."""

    def by_name(runs):
        every = [block for section in sections(runs) for block in section.blocks]
        assert len({block.name for block in every}) == len(every)
        return {block.name: block for block in every}

    return by_name


@pytest.fixture
def main(make):
    return [
        make("ln", nll=(5.0, 4.0, 3.0), bleu=30.0),
        make("bn", "BN", nll=(5.0, 3.75, 3.5), bleu=28.5, tid=(0.02, 0.10)),
        make("rbn", "RBN", nll=(5.0, 4.0, 2.75), bleu=31.0, tid=(0.01, 0.04)),
    ]
