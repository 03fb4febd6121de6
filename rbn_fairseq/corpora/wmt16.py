"""WMT16 English-German: Google's archive, with BPE already applied, or raw text."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

from rbn_fairseq.corpora.build import Recipe, Standard, apply_merges, learn_merges
from rbn_fairseq.corpora.moses import MOSES, Tokeniser
from rbn_fairseq.corpora.text import (
    Pair,
    Say,
    announced,
    clean_pair,
    count_pairs,
    extract,
    find_text,
    read_lines,
    sha256,
    write_lines,
    write_pairs,
)

__all__ = ["MERGES", "STANDARD", "WMT16FromArchive", "WMT16FromRaw"]

MERGES = 32_000
STANDARD = Standard(pairs={"train": 4_500_966, "valid": 3_000, "test": 3_003})

_TYPES = "32768"
_STEMS = {"train": "train", "valid": "newstest2013", "test": "newstest2014"}
_MEMBERS = {
    "train": "train.tok.clean.bpe.32000",
    "valid": "newstest2013.tok.bpe.32000",
    "test": "newstest2014.tok.bpe.32000",
}
_LONGEST, _RATIO = 80, 9  # the ratio is the default of Moses' script


@dataclass(frozen=True)
class _WMT16(Recipe):
    """Settings that both sources of the text share."""

    name: ClassVar[str] = "WMT16 En-De"
    langs: ClassVar[tuple[str, str]] = ("en", "de")
    standard: ClassVar[Standard] = STANDARD
    options: ClassVar[tuple[str, ...]] = ("--nwordssrc", _TYPES, "--nwordstgt", _TYPES)
    path: Path
    jobs: int


@dataclass(frozen=True)
class WMT16FromArchive(_WMT16):
    """Google's ``wmt16_en_de.tar.gz``, tokenised, cleaned, in subword units.

    Attributes:
        path: the archive.
        jobs: processes at a time.
    """

    def count_merges(self, bpe: Path) -> int:
        """Return what the names in the archive say."""
        return MERGES

    def request(self) -> dict[str, Any]:
        """Return the hash of the archive."""
        return {"corpus": self.name, "archive": sha256(self.path)}

    def _unpack(self, directory: Path, say: Say) -> dict[str, Path]:
        say(f"  unpacking {self.path}")
        files = {
            f"{split}.{lang}": f"{stem}.{lang}"
            for split, stem in _MEMBERS.items()
            for lang in self.langs
        }
        extract(self.path, set(files.values()), directory)
        return {name: directory / member for name, member in files.items()}

    def write_text(self, directory: Path, say: Say) -> Optional[str]:
        """Unpack, and join subword units to words."""
        unpacked = directory / "archive"
        unpacked.mkdir()
        for name, path in self._unpack(unpacked, say).items():
            words = (line.replace("@@ ", "") for line in read_lines(path))
            write_lines(directory / name, announced(words, f"undoing BPE in {name}", say))
        shutil.rmtree(unpacked)
        return None

    def write_bpe(self, text: Path, directory: Path, say: Say) -> None:
        """Unpack the subword units as they are."""
        for name, path in self._unpack(directory, say).items():
            path.rename(directory / name)


@dataclass(frozen=True)
class WMT16FromRaw(_WMT16):
    """Raw text: tokenised and cleaned here, with BPE learnt on it.

    Attributes:
        path: directory with ``{train,newstest2013,newstest2014}.{en,de}``.
        jobs: processes at a time.
        merges: to learn.
    """

    raw: ClassVar[bool] = True
    tokens: ClassVar[Mapping[str, Any]] = MOSES
    merges: int = MERGES

    def _source(self, split: str, lang: str) -> Path:
        return find_text("--from-raw", self.path, f"{_STEMS[split]}.{lang}")

    def _lines(self, split: str, lang: str) -> Iterator[str]:
        return (line.removesuffix("\r") for line in read_lines(self._source(split, lang)))

    def request(self) -> dict[str, Any]:
        """Return the hash of each file, and the merges to learn."""
        paths = [self._source(split, lang) for split in _STEMS for lang in self.langs]
        return {
            "corpus": self.name,
            "sha256": {path.name: sha256(path) for path in paths},
            "merges": self.merges,
        }

    def write_raw(self, directory: Path) -> None:
        """Write the raw test text, which sacreBLEU compares with."""
        for lang in self.langs:
            write_lines(directory / f"test.{lang}", self._lines("test", lang))

    def write_text(self, directory: Path, say: Say) -> str:
        """Tokenise all parts, clean the training part."""
        uncleaned = directory / "uncleaned"
        uncleaned.mkdir()
        tokenise = Tokeniser(self.jobs)
        say(f"  tokenising with {tokenise.name}")
        for split in _STEMS:
            for lang in self.langs:
                tokens = tokenise(self._lines(split, lang), lang)
                path = (uncleaned if split == "train" else directory) / f"{split}.{lang}"
                write_lines(path, announced(tokens, f"tokenising {split}.{lang}", say))
        count_pairs(uncleaned, "train", self.langs)
        write_pairs(directory, "train", self.langs, self._clean(uncleaned))
        shutil.rmtree(uncleaned)
        return tokenise.name

    def _clean(self, directory: Path) -> Iterator[Pair]:
        sides = [read_lines(directory / f"train.{lang}") for lang in self.langs]
        for source, target in zip(*sides, strict=True):
            pair = clean_pair(source, target, longest=_LONGEST, ratio=_RATIO)
            if pair is not None:
                yield pair

    def judge(self, text: Path, pairs: Mapping[str, int]) -> tuple[list[str], bool]:
        """Return that raw text is never the standard, which is acceptable."""
        counts = ", ".join(f"{pairs[split]:,}" for split in _STEMS)
        standard = ", ".join(f"{number:,}" for number in self.standard.pairs.values())
        return [
            f"made from raw text ({counts} pairs), not from Google's archive ({standard}); the "
            "numbers are not comparable with the paper's"
        ], True

    def write_bpe(self, text: Path, directory: Path, say: Say) -> None:
        """Learn the merges and apply them."""
        say(f"  learning {self.merges:,} merges")
        learn_merges(text, directory / "code", self.langs, self.merges)
        apply_merges(text, directory / "code", directory, self.langs, self.jobs, say)
