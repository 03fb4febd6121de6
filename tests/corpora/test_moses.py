"""The tokeniser: Moses' own, and its port where Perl is missing."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from published import ODD
from rbn_fairseq.corpora import moses
from rbn_fairseq.corpora.moses import Tokeniser

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="Moses' own needs Perl")
LINES = [pair[0] for pair in ODD] * 3


@pytest.fixture
def no_perl(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@needs_perl
@pytest.mark.parametrize("lang", ["de", "en"])
def test_moses_own(lang):
    script = Path(sysconfig.get_path("purelib")) / "mosestokenizer" / "tokenizer-v1.1.perl"
    expected = subprocess.run(
        f"perl {script} -q -l {lang}", shell=True, check=True, capture_output=True,
        input="".join(f"{line}\n" for line in LINES).encode(),
    )  # fmt: skip
    tokenise = Tokeniser(jobs=2)
    assert "tokenizer.perl" in tokenise.name
    assert list(tokenise(LINES, lang)) == expected.stdout.decode().split("\n")[:-1]


def test_many_chunks_keep_their_order():
    lines = [f"Satz {number}" for number in range(12_345)]  # two and a half chunks
    assert list(Tokeniser(jobs=2)(iter(lines), "de")) == lines


def test_without_perl(no_perl):
    tokenise = Tokeniser(jobs=1)
    assert tokenise.name.startswith("sacremoses ")
    assert list(tokenise(["It's 5,300.", "", "a\u2028b"], "en")) == [
        "It &apos;s 5,300 .",
        "",
        "a b",
    ]


def test_perl_without_its_modules(monkeypatch, tmp_path):
    # Debian's perl-base: there is a perl, but it cannot run the script.
    perl = tmp_path / "perl"
    perl.write_text('#!/bin/sh\necho "Can\'t locate Time/HiRes.pm" >&2\nexit 2\n')
    perl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert Tokeniser(jobs=1).name.startswith("sacremoses ")


def test_a_lost_line_is_an_error(monkeypatch, tmp_path):
    perl = tmp_path / "perl"
    perl.write_text("#!/bin/sh\nsed 1d\n")
    perl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ValueError, match="given 3 lines and returned 2"):
        moses._run_perl(tmp_path / "script", "de", ["a", "b", "c"])
