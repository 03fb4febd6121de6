import shutil

import pytest

import published
from rbn_fairseq.corpora import build


@pytest.fixture
def said():
    """What was said to the user."""
    return []


@pytest.fixture
def no_fairseq(monkeypatch):
    """Copies for binary data: importing fairseq takes seconds. Returns what it was called with."""
    calls = []

    def copy(text, out, langs, *options, joined=True):
        calls.append((langs, options, joined))
        shutil.copytree(text, out, dirs_exist_ok=True)
        (out / f"dict.{langs[0]}.txt").write_text("a 2\nb 1\n")
        return 6

    monkeypatch.setattr(build, "binarise", copy)
    return calls


@pytest.fixture(scope="session")
def de_en_tgz(tmp_path_factory):
    directory = tmp_path_factory.mktemp("iwslt14")
    return published.write_archive(directory / "de-en.tgz", published.iwslt_members(directory))


@pytest.fixture
def tokenised(tmp_path):
    """A directory for --from-tokenized, with a comma and lower case."""
    directory = tmp_path / "tokenised"
    published.corpus.write_corpus(directory, {"train": 90, "valid": 8, "test": 9})
    return directory
