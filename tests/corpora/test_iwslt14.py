"""IWSLT14 against the pipeline of grep, sed, awk and perl that fairseq's script describes."""

import os
import shutil
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

import published
from rbn_fairseq.corpora import iwslt14
from rbn_fairseq.corpora.build import Standard, build
from rbn_fairseq.corpora.iwslt14 import IWSLT14FromArchive, IWSLT14FromTokenised
from rbn_fairseq.corpora.text import sha256

LANGS = ("de", "en")
NAMES = [f"{split}.{lang}" for split in ("train", "valid", "test") for lang in LANGS]
SCRIPT = Path(sysconfig.get_path("purelib")) / "mosestokenizer" / "tokenizer-v1.1.perl"

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


@pytest.mark.skipif(shutil.which("perl") is None, reason="the oracle is Perl")
def test_same_as_the_pipeline(de_en_tgz, tmp_path, said):
    oracle, ours = tmp_path / "oracle", tmp_path / "ours"
    oracle.mkdir()
    ours.mkdir()
    environment = {**os.environ, "ARCHIVE": str(de_en_tgz), "SCRIPT": str(SCRIPT)}
    command = ["bash", "-euo", "pipefail", "-c", PIPELINE]
    subprocess.run(command, cwd=oracle, env={**environment, "LC_ALL": "C.UTF-8"}, check=True)
    assert "perl" in IWSLT14FromArchive(de_en_tgz, jobs=2).write_text(ours, said.append)
    assert sorted(path.name for path in ours.iterdir()) == sorted(NAMES)  # nothing is left over
    for name in NAMES:
        assert (ours / name).read_bytes() == (oracle / name).read_bytes(), name
    # The archive has what tells the steps apart: cleaned pairs, every one of the five talks.
    assert len((ours / "valid.de").read_bytes().split(b"\n")) > 5
    assert (ours / "test.de").read_text().count("\n") == 5 * 13


def test_sides_of_unequal_length(tmp_path, said):
    members = published.iwslt_members(tmp_path)
    members["de-en/train.tags.de-en.en"] += "one more\n"
    archive = published.write_archive(tmp_path / "a.tgz", members)
    (tmp_path / "text").mkdir()
    with pytest.raises(ValueError, match="tags.de-en.de has 213 .* train.tags.de-en.en 214"):
        IWSLT14FromArchive(archive, jobs=1).write_text(tmp_path / "text", said.append)


def standard_of(directory: Path) -> Standard:
    """Make a text the standard."""
    pairs = {s: (directory / f"{s}.de").read_text().count("\n") for s in ("train", "valid", "test")}
    hashes = {name: sha256(directory / name) for name in NAMES if not name.startswith("train")}
    return Standard(pairs, hashes)


@pytest.fixture
def standard(monkeypatch, tokenised):
    standard = standard_of(tokenised)
    monkeypatch.setattr(IWSLT14FromTokenised, "standard", standard)
    return standard


@pytest.fixture
def prepare(tokenised, tmp_path, said, no_fairseq):
    def prepare(allow=False, **options):
        recipe = IWSLT14FromTokenised(tokenised, 1, **{"learnt": 20, **options})
        return build(recipe, tmp_path / "out", allow, said.append)

    return prepare


def test_the_standard_text(monkeypatch, prepare, standard, tokenised, tmp_path):
    monkeypatch.setattr(iwslt14, "MERGES", 20)
    about = prepare()
    assert about["standard"] and not about["differences"]
    assert about["pairs"] == standard.pairs
    assert about["tokeniser"] is None
    for name in NAMES:
        assert (tmp_path / "out/text" / name).read_bytes() == (tokenised / name).read_bytes()


def test_a_subset_is_told_and_taken(monkeypatch, prepare, standard, said):
    monkeypatch.setattr(iwslt14, "MERGES", 20)
    more = replace(standard, pairs={**standard.pairs, "train": 1234})
    monkeypatch.setattr(IWSLT14FromTokenised, "standard", more)
    about = prepare()
    expected = (
        "this is a subset: 90 of 1,234 training pairs; the numbers are not comparable with the "
        "paper's"
    )
    assert not about["standard"] and about["differences"] == [expected]
    assert f"  not the standard: {expected}" in said


def shorter(text):
    return text.partition("\n")[2]


def longer(text):
    return text + "eins\n"


def altered(text):
    return text.replace("in", "im", 1)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"valid.en": altered}, ["valid.en differs from the standard file (SHA-256 "]),
        (
            {"test.de": shorter, "test.en": shorter},
            ["test has 8 pairs, the standard has 9", "test.de differs", "test.en differs"],
        ),
        (  # less training text is no subset where the rest differs
            {"train.de": shorter, "train.en": shorter, "valid.en": altered},
            ["train has 89 pairs, the standard has 90", "valid.en differs from the standard file"],
        ),
        (
            {"train.de": longer, "train.en": longer},
            ["train has 91 pairs, the standard has 90"],
        ),
    ],
)
def test_other_differences_are_refused(
    monkeypatch, prepare, standard, tokenised, tmp_path, changes, expected
):
    monkeypatch.setattr(iwslt14, "MERGES", 20)
    for name, change in changes.items():
        (tokenised / name).write_text(change((tokenised / name).read_text()))
    with pytest.raises(ValueError, match="not the standard IWSLT14 De-En") as error:
        prepare()
    assert "--allow-nonstandard" in str(error.value) and "Perl" not in str(error.value)
    assert not (tmp_path / "out/text").exists()
    about = prepare(allow=True)
    assert not about["standard"] and len(about["differences"]) == len(expected)
    for difference, words in zip(about["differences"], expected, strict=True):
        assert words in difference and words in str(error.value)


def test_missing_perl_is_named_as_the_reason(monkeypatch, de_en_tgz, tmp_path, said, no_fairseq):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="not the standard") as error:
        build(IWSLT14FromArchive(de_en_tgz, 1, 20), tmp_path / "out", False, said.append)
    assert "tokenised by sacremoses" in str(error.value) and "Install it" in str(error.value)
    about = build(IWSLT14FromArchive(de_en_tgz, 1, 20), tmp_path / "out", True, said.append)
    assert about["tokeniser"].startswith("sacremoses")


def test_merges_that_are_given(monkeypatch, prepare, standard, tmp_path, said):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\ne i\nei n\n")
    about = prepare(codes=codes)
    assert about["merges"] == 2
    assert about["differences"] == ["the merges are those of codes, not those of the standard"]
    assert (tmp_path / "out/bpe/code").read_bytes() == codes.read_bytes()
    assert "ein@@ " in (tmp_path / "out/bpe/train.de").read_text()
    shutil.rmtree(tmp_path / "out")
    monkeypatch.setattr(iwslt14, "STANDARD_CODES", sha256(codes))
    assert prepare(codes=codes)["standard"]


def test_number_of_merges_is_part_of_the_standard(prepare, standard):
    assert prepare()["differences"] == ["20 merges were asked for, the standard has 10,000"]
