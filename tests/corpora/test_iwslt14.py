"""IWSLT14 against the pipeline of grep, sed, awk and perl that fairseq's script describes."""

import os
import shutil
import subprocess
import sysconfig
import tarfile
from pathlib import Path

import pytest

from rbn_fairseq.corpora.build import build
from rbn_fairseq.corpora.iwslt14 import IWSLT14, clean_pair, tokenise
from rbn_fairseq.corpora.text import sha256

LANGS = ("de", "en")
NAMES = [f"{split}.{lang}" for split in ("train", "valid", "test") for lang in LANGS]
SCRIPT = Path(sysconfig.get_path("purelib")) / "mosestokenizer" / "tokenizer-v1.1.perl"

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="needs Perl")

# Every line of `clean` has a tab between the sides; the tokeniser leaves no other.
PIPELINE = r"""
tar xzf "$ARCHIVE"
for l in de en; do
    grep -v '<url>' de-en/train.tags.de-en.$l | grep -v '<talkid>' | grep -v '<keywords>' |
        sed -e 's/<title>//g' -e 's/<\/title>//g' |
        sed -e 's/<description>//g' -e 's/<\/description>//g' |
        perl "$SCRIPT" -q -l $l > tok.$l
    for o in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
        grep '<seg id' de-en/IWSLT14.$o.de-en.$l.xml |
            sed -e 's/<seg id="[0-9]*">\s*//g' -e 's/\s*<\/seg>\s*//g' -e "s/’/'/g" |
            perl "$SCRIPT" -q -l $l | perl -CSD -ne 'print lc'
    done > test.$l
done
paste tok.de tok.en | perl -CSD -pe 's/\xa0/ /g' | awk -F '\t' '{
    n = split($1, a, " "); m = split($2, b, " ")
    if (n && m && n <= 175 && m <= 175 && n <= 1.5 * m && m <= 1.5 * n) print
}' | perl -CSD -ne 'print lc' > clean
for l in de en; do
    f=$([ $l = de ] && echo 1 || echo 2)
    cut -f $f clean | awk 'NR % 23 == 0' > valid.$l
    cut -f $f clean | awk 'NR % 23 != 0' > train.$l
done
"""


@needs_perl
def test_same_as_the_pipeline(de_en_tgz, tmp_path):
    oracle, ours = tmp_path / "oracle", tmp_path / "ours"
    oracle.mkdir()
    ours.mkdir()
    environment = {**os.environ, "ARCHIVE": str(de_en_tgz), "SCRIPT": str(SCRIPT)}
    command = ["bash", "-euo", "pipefail", "-c", PIPELINE]
    subprocess.run(command, cwd=oracle, env={**environment, "LC_ALL": "C.UTF-8"}, check=True)
    assert "perl" in IWSLT14(de_en_tgz, 20, jobs=2).write_tokens(ours)
    assert sorted(path.name for path in ours.iterdir()) == sorted(NAMES)  # nothing is left over
    for name in NAMES:
        assert (ours / name).read_bytes() == (oracle / name).read_bytes(), name
    # The archive has what tells the steps apart: cleaned pairs, every one of the five talks.
    assert len((ours / "valid.de").read_bytes().split(b"\n")) > 5
    assert (ours / "test.de").read_text().count("\n") == 5 * 13


@needs_perl
def test_sides_of_unlike_length(de_en_tgz, tmp_path):
    shutil.unpack_archive(de_en_tgz, tmp_path)  # tarfile's filter is not in all of Python 3.11
    side = tmp_path / "de-en" / "train.tags.de-en.en"
    side.write_text("".join(side.read_text().splitlines(keepends=True)[:-1]))
    shorter = tmp_path / "de-en.tgz"
    with tarfile.open(shorter, "w:gz") as archive:
        archive.add(tmp_path / "de-en", "de-en")
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"train\.tags\.de-en\.de and .* lines of text"):
        IWSLT14(shorter, 20, jobs=1).write_tokens(tmp_path / "out")


@pytest.fixture
def standard(monkeypatch, tokenised):
    """Make the tokenised text with 20 merges the standard."""
    pairs = {"train": 90, "valid": 8, "test": 9}
    hashes = {name: sha256(tokenised / name) for name in NAMES if not name.startswith("train")}
    for name, value in {"standard": pairs, "hashes": hashes, "standard_merges": 20}.items():
        monkeypatch.setattr(IWSLT14, name, value)


@pytest.fixture
def prepare(tokenised, tmp_path, said, no_fairseq):
    def prepare(allow=False, merges=20):
        return build(IWSLT14(tokenised, merges), tmp_path / "out", allow, said.append)

    return prepare


def test_the_standard_text(prepare, standard, tokenised, tmp_path):
    about = prepare()
    assert about["standard"] and not about["differences"]
    assert about["pairs"] == IWSLT14.standard
    assert about["tokeniser"] is None
    for name in NAMES:
        assert (tmp_path / "out/text" / name).read_bytes() == (tokenised / name).read_bytes()


def test_a_carriage_return_within_a_line_is_a_space(prepare, tokenised, tmp_path):
    before = (tokenised / "train.de").read_bytes()
    (tokenised / "train.de").write_bytes(before.replace(b" ", b"\r", 1))
    assert prepare(allow=True)["pairs"] == {"train": 90, "valid": 8, "test": 9}
    assert (tmp_path / "out/text/train.de").read_bytes() == before


@pytest.mark.parametrize("token", ["<s>", "<pad>", "</s>"])
def test_what_fairseq_takes_for_no_token_is_refused(prepare, tokenised, token):
    (tokenised / "valid.en").write_text(f"a {token}b\n" * 7 + f"a {token} b\n")
    with pytest.raises(ValueError, match=f"Line 8 of .*valid.en. has the token `{token}`"):
        prepare(allow=True)


def shorter(text):
    return text.partition("\n")[2]


def longer(text):
    return text + "eins\n"


def altered(text):
    return text.replace("in", "im", 1)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"valid.en": altered}, ["valid.en differs from the standard file"]),
        (
            {"test.de": shorter, "test.en": shorter},
            ["test has 8 pairs, the standard has 9", "test.de differs", "test.en differs"],
        ),
        (
            {"train.de": shorter, "train.en": shorter, "valid.en": altered},
            ["train has 89 pairs, the standard has 90", "valid.en differs from the standard file"],
        ),
        (
            {"train.de": longer, "train.en": longer},
            ["train has 91 pairs, the standard has 90"],
        ),
    ],
)
def test_other_differences_are_refused(prepare, standard, tokenised, tmp_path, changes, expected):
    for name, change in changes.items():
        (tokenised / name).write_text(change((tokenised / name).read_text()))
    with pytest.raises(ValueError, match="not the standard IWSLT14 De-En") as error:
        prepare()
    assert "--allow-nonstandard" in str(error.value)
    assert not (tmp_path / "out/text").exists()
    about = prepare(allow=True)
    assert not about["standard"] and len(about["differences"]) == len(expected)
    for difference, words in zip(about["differences"], expected, strict=True):
        assert words in difference and words in str(error.value)


def test_number_of_merges_is_part_of_the_standard(prepare, standard):
    about = prepare(merges=21)
    assert about["differences"] == ["21 merges were asked for, the standard has 20"]


def words(number, word="w"):
    return " ".join([word] * number)


@pytest.mark.parametrize(
    "source, target, kept",
    [
        (words(3), words(2), True),  # exactly 1.5
        (words(2), words(3), True),
        (words(16), words(10), False),
        (words(10), words(16), False),
        (words(175), words(175), True),
        (words(176), words(175), False),
        (words(175), words(176), False),
        ("", words(1), False),
        (words(1), " \u00a0", False),
        (words(1), "|", False),
        (words(1, "x" * 1000), words(1), True),
        (words(1, "x" * 1001), words(1), False),
        (words(1), words(1, "x" * 1001), False),
        (words(1), words(1), True),
    ],
)
def test_what_is_kept(source, target, kept):
    assert clean_pair(source, target) == ((source, target) if kept else None)


def test_white_space_and_bars_are_tidied():
    assert clean_pair(" a\u2028b\u0085\u00a0c\t", "a|b  c ") == ("a b c", "ab c")
    # Perl's white space ends here; str.split would cut.
    assert clean_pair("a\x1fb", "a") == ("a\x1fb", "a")


@needs_perl
@pytest.mark.parametrize("lang", LANGS)
def test_many_chunks_keep_their_order(lang):
    lines = [f"{number} Sätze." for number in range(12_345)]  # two and a half chunks
    assert tokenise(iter(lines), lang, jobs=2) == [f"{number} Sätze ." for number in range(12_345)]


@needs_perl
def test_the_last_full_stop():
    """Where sacremoses differs."""
    assert tokenise(["as he said.'"], "en", 1) == ["as he said.&apos;"]


@pytest.mark.parametrize("perl", [None, "#!/bin/sh\necho 'no Time/HiRes.pm' >&2\nexit 2\n"])
def test_without_perl_or_its_modules(monkeypatch, tmp_path, perl):
    if perl is not None:  # Debian's perl-base
        (tmp_path / "perl").write_text(perl)
        (tmp_path / "perl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="apt-get install perl.*(No such file|no Time)"):
        tokenise(["a"], "de", 1)
