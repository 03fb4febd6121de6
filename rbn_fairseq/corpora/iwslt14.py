"""IWSLT14 German-English, TED talks.

The steps are those of fairseq's ``examples/translation/prepare-iwslt14.sh``.
"""

import re
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Optional

from rbn_fairseq.corpora.build import (
    Recipe,
    Standard,
    apply_merges,
    check_codes,
    learn_merges,
)
from rbn_fairseq.corpora.moses import MOSES, Tokeniser
from rbn_fairseq.corpora.text import (
    SPLITS,
    Say,
    announced,
    clean_pair,
    extract,
    find_text,
    lower_case,
    read_lines,
    sha256,
    write_lines,
    write_pairs,
)

__all__ = ["MERGES", "STANDARD", "STANDARD_CODES", "IWSLT14FromArchive", "IWSLT14FromTokenised"]

MERGES = 10_000
STANDARD = Standard(
    pairs={"train": 160_239, "valid": 7_283, "test": 6_750},
    sha256={
        "valid.de": "3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a",
        "valid.en": "e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d",
        "test.de": "e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf",
        "test.en": "4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c",
    },
)
# Of the merges that subword-nmt learns on the standard training text.
STANDARD_CODES = "3dd02684b6693abce3ba59520425901b0b910abeec2ae6b15cc62e458441d503"

_TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_NO_SENTENCES = ("<url>", "<talkid>", "<keywords>")
_TAGS = ("<title>", "</title>", "<description>", "</description>")
_OPENING, _CLOSING = re.compile(r'<seg id="[0-9]*">\s*'), re.compile(r"\s*</seg>\s*")
_LONGEST, _RATIO = 175, 1.5
_EVERY = 23  # that many cleaned pairs, one is for validation


def _train_name(lang: str) -> str:
    return f"train.tags.de-en.{lang}"


def _talk_name(talk: str, lang: str) -> str:
    return f"IWSLT14.{talk}.de-en.{lang}.xml"


def _train_lines(path: Path) -> Iterator[str]:
    for line in read_lines(path):
        if not any(mark in line for mark in _NO_SENTENCES):
            for tag in _TAGS:
                line = line.replace(tag, "")
            yield line


def _talk_lines(path: Path) -> Iterator[str]:
    for line in read_lines(path):
        if "<seg id" in line:
            yield _CLOSING.sub("", _OPENING.sub("", line)).replace("’", "'")


@dataclass(frozen=True)
class _IWSLT14(Recipe):
    """Settings and steps that both sources of the text share.

    Attributes:
        path: the archive, or the directory of tokenised text.
        jobs: processes at a time.
        learnt: merges to learn.
        codes: merges to use instead.
    """

    name: ClassVar[str] = "IWSLT14 De-En"
    langs: ClassVar[tuple[str, str]] = ("de", "en")
    standard: ClassVar[Standard] = STANDARD
    tokens: ClassVar[Mapping[str, Any]] = {**MOSES, "lowercase": True}
    path: Path
    jobs: int
    learnt: int = MERGES
    codes: Optional[Path] = None

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Return hashes of what is read."""

    def request(self) -> dict[str, Any]:
        if self.codes is not None:
            check_codes(self.codes)
        return {
            "corpus": self.name,
            **self.source(),
            "merges": self.learnt if self.codes is None else None,
            "codes": None if self.codes is None else sha256(self.codes),
        }

    def write_bpe(self, text: Path, directory: Path, say: Say) -> None:
        code = directory / "code"
        if self.codes is None:
            say(f"  learning {self.learnt:,} merges")
            learn_merges(text, code, self.langs, self.learnt)
        else:
            shutil.copyfile(self.codes, code)
        apply_merges(text, code, directory, self.langs, self.jobs, say)

    def bpe_differences(self) -> list[str]:
        if self.codes is not None and sha256(self.codes) != STANDARD_CODES:
            return [f"the merges are those of {self.codes.name}, not those of the standard"]
        if self.codes is None and self.learnt != MERGES:
            return [f"{self.learnt:,} merges were asked for, the standard has {MERGES:,}"]
        return []


@dataclass(frozen=True)
class IWSLT14FromTokenised(_IWSLT14):
    """Text that is tokenised and in lower case, used as it is."""

    def _paths(self) -> list[Path]:
        names = [f"{split}.{lang}" for split in SPLITS for lang in self.langs]
        return [find_text("--from-tokenized", self.path, name) for name in names]

    def source(self) -> dict[str, Any]:
        """Return the hash of each file."""
        return {"sha256": {path.name: sha256(path) for path in self._paths()}}

    def write_text(self, directory: Path, say: Say) -> Optional[str]:
        """Copy the text, decompressed."""
        for path in self._paths():
            write_lines(directory / path.name.removesuffix(".gz"), read_lines(path))
        return None

    def judge(self, text: Path, pairs: Mapping[str, int]) -> tuple[list[str], bool]:
        """Compare with the standard; less of its training text is acceptable."""
        differences, acceptable = super().judge(text, pairs)
        whole = self.standard.pairs["train"]
        # Validation and test are the standard: part of the training text was left out on purpose.
        if len(differences) == 1 and pairs["train"] < whole:
            return [
                f"this is a subset: {pairs['train']:,} of {whole:,} training pairs; the numbers "
                "are not comparable with the paper's"
            ], True
        return differences, acceptable


@dataclass(frozen=True)
class IWSLT14FromArchive(_IWSLT14):
    """The archive ``de-en.tgz`` of WIT3 (Cettolo et al. 2012)."""

    def source(self) -> dict[str, Any]:
        """Return the hash of the archive."""
        return {"archive": sha256(self.path)}

    def write_text(self, directory: Path, say: Say) -> str:
        """Unpack, tokenise, clean and split."""
        unpacked = directory / "archive"
        unpacked.mkdir()
        say(f"  unpacking {self.path}")
        names = [_talk_name(talk, lang) for talk in _TALKS for lang in self.langs]
        extract(self.path, [*map(_train_name, self.langs), *names], unpacked)
        tokenise = Tokeniser(self.jobs)
        say(f"  tokenising with {tokenise.name}")
        sides = []
        for lang in self.langs:
            tokens = tokenise(_train_lines(unpacked / _train_name(lang)), lang)
            sides.append(list(announced(tokens, f"tokenising {_train_name(lang)}", say)))
            talks = (_talk_lines(unpacked / _talk_name(talk, lang)) for talk in _TALKS)
            test = tokenise(chain.from_iterable(talks), lang)
            write_lines(directory / f"test.{lang}", map(lower_case, test))
        shutil.rmtree(unpacked)
        source, target = sides
        if len(source) != len(target):
            raise ValueError(
                f"--archive: {_train_name('de')} has {len(source):,} sentences, "
                f"{_train_name('en')} {len(target):,}; they must be each other's translations. It "
                "is not the archive it should be."
            )
        cleaned = (
            clean_pair(*pair, longest=_LONGEST, ratio=_RATIO)
            for pair in zip(source, target, strict=True)
        )
        pairs = [(lower_case(pair[0]), lower_case(pair[1])) for pair in cleaned if pair is not None]
        write_pairs(directory, "valid", self.langs, pairs[_EVERY - 1 :: _EVERY])
        del pairs[_EVERY - 1 :: _EVERY]
        write_pairs(directory, "train", self.langs, pairs)
        return tokenise.name
