"""IWSLT14 German-English, TED talks.

The steps are those of fairseq's ``examples/translation/prepare-iwslt14.sh``.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import metadata
from itertools import chain
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

from rbn_fairseq.corpora.build import PairCorpus, apply_merges, hash_files, learn_merges
from rbn_fairseq.corpora.text import (
    SPLITS,
    Pair,
    extract,
    lower_case,
    read_lines,
    sha256,
    write_lines,
    write_pairs,
)

__all__ = ["IWSLT14"]

_TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_NO_SENTENCES = ("<url>", "<talkid>", "<keywords>")
_TAGS = ("<title>", "</title>", "<description>", "</description>")
_OPENING, _CLOSING = re.compile(r'<seg id="[0-9]*">\s*'), re.compile(r"\s*</seg>\s*")
_EVERY = 23  # that many cleaned pairs, one is for validation

_LONGEST, _RATIO = 175, 1.5  # tokens
_LONGEST_WORD = 1_000  # characters
# What Perl calls white space; Python also counts four control characters.
_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_CHUNK = 5_000  # lines for one process of the tokeniser


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


def _run_moses(lang: str, lines: list[str]) -> list[str]:
    # The class of this package is not used: it asks Moses to split at hyphens, too.
    package = metadata.distribution("mosestokenizer")
    script = str(package.locate_file("mosestokenizer/tokenizer-v1.1.perl"))
    text = "".join(line + "\n" for line in lines).encode()
    try:
        done = subprocess.run(
            ["perl", script, "-q", "-l", lang], input=text, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode(errors="replace").strip() or error
        raise ValueError(
            "--archive: Moses' tokeniser needs Perl with its standard modules (Debian: apt-get "
            f"install perl), but {reason}"
        ) from None
    return done.stdout.decode("utf-8").split("\n")[:-1]


def tokenise(lines: Iterable[str], lang: str, jobs: int) -> list[str]:
    """Tokenise lines by Moses' own Perl script, which escapes (``&apos;`` and so on).

    sacremoses, its port, is not the same: it cuts off the full stop of a last ``.'``.

    Raises:
        ValueError: if Perl is missing.
    """
    lines = list(lines)
    chunks = [lines[begin : begin + _CHUNK] for begin in range(0, len(lines), _CHUNK)]
    with ThreadPool(jobs) as pool:  # the threads only wait for their processes
        return list(chain.from_iterable(pool.imap(partial(_run_moses, lang), chunks)))


def clean_pair(source: str, target: str) -> Optional[Pair]:
    """Tidy a tokenised pair; ``None`` = not to be trained on.

    Follows ``scripts/training/clean-corpus-n.perl`` of Moses: both sides must have 1 to 175
    tokens, neither more than 1.5 times as many as the other, and no token of more than 1,000
    characters.
    """
    # The script keeps "|" where the first line has one: text with factors. Ours never has any,
    # because the tokeniser escapes it.
    source, target = (
        _SPACE.sub(" ", side.replace("|", "")).strip(" ") for side in (source, target)
    )
    if not source or not target:
        return None
    sides = source.split(" "), target.split(" ")
    shorter, longer = sorted(map(len, sides))
    if longer > _LONGEST or longer / shorter > _RATIO:
        return None
    if any(len(word) > _LONGEST_WORD for side in sides for word in side):
        return None
    return source, target


class IWSLT14(PairCorpus):
    """Made of WIT3's archive ``de-en.tgz`` (Cettolo et al. 2012), or of a directory.

    The directory's text is tokenised and in lower case, and used as it is.
    """

    name = "IWSLT14 De-En"
    langs = ("de", "en")
    standard = {"train": 160_239, "valid": 7_283, "test": 6_750}
    hashes = {
        "valid.de": "3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a",
        "valid.en": "e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d",
        "test.de": "e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf",
        "test.en": "4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c",
    }
    standard_merges = 10_000
    tokens = {"tokenizer": "moses", "moses_no_dash_splits": True, "lowercase": True}

    def request(self) -> dict[str, Any]:
        """Return the hashes of what is read, and the number of merges."""
        source: dict[str, Any]
        if self.path.is_dir():
            source = {"sha256": {path.name: sha256(path) for path in self._tokenised()}}
        else:
            source = hash_files({"archive": self.path})
        return {"corpus": self.name, **source, "merges": self.merges}

    def _tokenised(self) -> list[Path]:
        paths = [self.path / f"{split}.{lang}" for split in SPLITS for lang in self.langs]
        for path in paths:
            if not path.is_file():
                raise ValueError(f"--from-tokenized: there is no file `{path}`.")
        return paths

    def write_tokens(self, directory: Path) -> Optional[str]:
        """Copy the text; of an archive: unpack, tokenise, clean and split."""
        if not self.path.is_dir():
            self._write_archive(directory)
            return f"Moses tokenizer.perl 1.1, mosestokenizer {metadata.version('mosestokenizer')}"
        for path in self._tokenised():
            write_lines(directory / path.name, read_lines(path))
        return None

    def _write_archive(self, directory: Path) -> None:
        talks = {
            lang: [f"IWSLT14.{talk}.de-en.{lang}.xml" for talk in _TALKS] for lang in self.langs
        }
        train = {lang: f"train.tags.de-en.{lang}" for lang in self.langs}
        sides = []
        with TemporaryDirectory(dir=directory) as temporary:
            unpacked = Path(temporary)
            extract(self.path, [*train.values(), *chain.from_iterable(talks.values())], unpacked)
            for lang in self.langs:
                sides.append(tokenise(_train_lines(unpacked / train[lang]), lang, self.jobs))
                test = chain.from_iterable(_talk_lines(unpacked / name) for name in talks[lang])
                tokens = tokenise(test, lang, self.jobs)
                write_lines(directory / f"test.{lang}", map(lower_case, tokens))
        if len({*map(len, sides)}) > 1:
            lines = " and ".join(f"{len(side):,}" for side in sides)
            raise ValueError(
                f"In `{self.path}`, {' and '.join(train.values())} have {lines} lines of text, but "
                "must have equally many. Is the archive the right one?"
            )
        cleaned = (clean_pair(*pair) for pair in zip(*sides, strict=True))
        pairs = [(lower_case(pair[0]), lower_case(pair[1])) for pair in cleaned if pair is not None]
        write_pairs(directory, "valid", self.langs, pairs[_EVERY - 1 :: _EVERY])
        del pairs[_EVERY - 1 :: _EVERY]
        write_pairs(directory, "train", self.langs, pairs)

    def write_bpe(self, text: Path, directory: Path) -> None:
        """Learn the merges and apply them."""
        learn_merges(text, directory / "code", self.langs, self.merges)
        apply_merges(text, directory / "code", directory, self.langs)
