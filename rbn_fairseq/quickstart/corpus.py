"""The quickstart's corpus: text, checked and split, in pieces of sentencepiece, binary.

Without text of the user's it is German and English that any Debian machine can fetch: the help
pages of LibreOffice. The two packages are downloaded and unpacked, not installed. Their pages are
translations of one another: a paragraph has the same file and element id in both.
"""

import hashlib
import html
import json
import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

import sentencepiece

from rbn_fairseq.corpora.build import Corpus, binarise
from rbn_fairseq.corpora.text import SPLITS, Pair, read_lines, write_lines, write_pairs
from rbn_fairseq.pieces import write_pieces

_PACKAGES = {
    "libreoffice-help-de": "usr/share/libreoffice/help/de/text",
    "libreoffice-help-en-us": "usr/share/libreoffice/help/en-US/text",
}
_FETCH = """set -e
rm -rf "$1"[_.]*
apt-get download "$1"
dpkg-deb -x "$1"_*.deb "$1.unfinished"
mv "$1.unfinished" "$1"
"""
_SHORTEST, _LONGEST = 4, 60  # words of a help page's paragraph: of the English, of either side
_TRAIN, _VALID, _TEST = 13_000, 500, 300  # pairs at most
_LONGEST_PIECES = 250
_VOCABULARY = 3_000
_MODEL = "spm.model"

#: A heading or paragraph with an id, in pages that a program wrote: none is within another.
_PARAGRAPH = re.compile(r'<(?:p|h[1-6])\b[^>]*\sid="([^"]*)"[^>]*>(.*?)</(?:p|h[1-6])>', re.DOTALL)


def read_page(page: str) -> dict[str, str]:
    """Return the headings and paragraphs of a help page by element id, white space collapsed."""
    texts = {
        name: html.unescape(re.sub("<[^>]*>", "", text)) for name, text in _PARAGRAPH.findall(page)
    }
    return {name: " ".join(text.split()) for name, text in texts.items()}


def shares_words(source: str, target: str) -> bool:
    """Tell whether more than a quarter of the words are on both sides.

    Such pairs are formulas and names, which copying the source translates. Counted are distinct
    words, against the side that has fewer of them.
    """
    left, right = (set(re.findall(r"\w+", side.lower())) for side in (source, target))
    return len(left & right) > min(len(left), len(right)) / 4


def fetch_pages(directory: Path) -> tuple[Path, Path]:
    """Download and unpack the help pages; what is there already is not fetched again.

    Returns:
        The directories of the German and of the English pages.

    Raises:
        ValueError: if apt is missing or the download fails; the message tells what to do.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for package in _PACKAGES:
        if not (directory / package).is_dir():
            command = ["/bin/sh", "-c", _FETCH, "sh", package]
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
            if done.returncode != 0:
                raise ValueError(
                    f"`apt-get download {package}` failed: {done.stderr.strip()}. Run this on "
                    "Debian or Ubuntu, after `apt-get update` as root, or give text of your own: "
                    "--data PREFIX --source-lang de --target-lang en."
                )
    german, english = (directory / package / pages for package, pages in _PACKAGES.items())
    return german, english


def read_pairs(german: Path, english: Path) -> dict[str, list[Pair]]:
    """Return the pairs of paragraphs by page, without short, long and untranslated ones."""
    pages = {}
    for path in english.rglob("*.html"):
        name = str(path.relative_to(english))
        if (german / name).is_file():
            sources = read_page((german / name).read_text(encoding="utf-8"))
            targets = read_page(path.read_text(encoding="utf-8"))
            pages[name] = [
                (source, target)
                for paragraph, target in targets.items()
                if (source := sources.get(paragraph, ""))
                and _SHORTEST <= len(target.split()) <= _LONGEST
                and len(source.split()) <= _LONGEST
                and not shares_words(source, target)
            ]
    return pages


def split_pages(pages: Mapping[str, Sequence[Pair]]) -> dict[str, list[Pair]]:
    """Split by page, never by paragraph, because the paragraphs of a page resemble each other.

    A source or a target that occurred before is left out, so that no sentence of one part is
    also in another.
    """
    order = sorted(pages)
    random.Random(1).shuffle(order)
    unread = iter(order)
    parts: dict[str, list[Pair]] = {}
    seen: set[str] = set()
    for part, number in ("test", _TEST), ("valid", _VALID), ("train", _TRAIN):
        pairs = parts[part] = []
        while len(pairs) < number and (page := next(unread, None)) is not None:
            for source, target in pages[page]:
                if source not in seen and target not in seen:
                    seen.update((source, target))
                    pairs.append((source, target))
        del pairs[number:]
    return {split: parts[split] for split in SPLITS}


def _read_side(path: Path) -> list[str]:
    """Read one side; white space is collapsed, as fairseq would end lines at some of it."""
    if not path.is_file():
        raise ValueError(
            f"--data: there is no file `{path}`. PREFIX is a directory, PREFIX/train.de and so on, "
            "or what comes before .train.de, .valid.de, .test.de."
        )
    return [" ".join(line.split()) for line in read_lines(path)]


def read_text(prefix: str, langs: Sequence[str]) -> dict[str, list[Pair]]:
    """Read ``{train,valid,test}.{source,target}`` of a directory, or behind ``PREFIX.``.

    Of a larger test set, 300 pairs are drawn.

    Raises:
        ValueError: if a file is missing or not UTF-8, the two sides have different numbers of
            lines, or a line is empty; the message names the file.
    """
    base = f"{prefix}/" if Path(prefix).is_dir() else f"{prefix}."
    parts = {}
    for split in SPLITS:
        paths = [Path(f"{base}{split}.{lang}") for lang in langs]
        source, target = map(_read_side, paths)
        if len(source) != len(target) or "" in source + target:
            raise ValueError(
                f"--data: `{paths[0]}` has {len(source)} lines, `{paths[1]}` {len(target)}, "
                f"{(source + target).count('')} of them empty. Line k of one file must translate "
                "line k of the other."
            )
        parts[split] = list(zip(source, target, strict=True))
    if len(parts["test"]) > _TEST:
        chosen = sorted(random.Random(1).sample(range(len(parts["test"])), _TEST))
        parts["test"] = [parts["test"][index] for index in chosen]
    return parts


@dataclass(frozen=True)
class QuickstartText(Corpus):
    """LibreOffice's help pages, or text of the user's; in pieces of sentencepiece.

    Attributes:
        data: a directory or prefix of the user's text; ``None`` = the help pages.
        langs: source and target.
        packages: directory for the packages of the help pages.
    """

    data: Optional[str]
    langs: tuple[str, str]
    packages: Path
    name = "text of the quickstart"

    def request(self) -> dict[str, Any]:
        """Return the languages, and the hash of the user's text."""
        digest = None
        if self.data is not None:
            text = json.dumps([*read_text(self.data, self.langs).values()], ensure_ascii=False)
            digest = hashlib.sha256(text.encode()).hexdigest()
        elif self.langs != ("de", "en"):
            raise ValueError(
                f"--source-lang {self.langs[0]} --target-lang {self.langs[1]}: the help pages are "
                "taken as de-en. Other languages need text of your own: --data PREFIX."
            )
        return {"languages": "-".join(self.langs), "sha256": digest}

    def write_text(self, directory: Path) -> dict[str, Any]:
        """Learn the pieces; write sentences that have not too many, and count their pairs."""
        if self.data is None:
            parts = split_pages(read_pairs(*fetch_pages(self.packages)))
            names = sorted(path.stem.replace("%3a", ":") for path in self.packages.glob("*.deb"))
            origin = f"LibreOffice help, Debian packages {' and '.join(names)}"
        else:
            parts, origin = read_text(self.data, self.langs), self.data
        write_pairs(directory, "train", self.langs, parts["train"])
        characters = len(set().union(*(side for pair in parts["train"] for side in pair)))
        many = characters > _VOCABULARY / 4  # a script of its own for words or syllables
        model = directory / _MODEL
        sentencepiece.SentencePieceTrainer.train(
            input=[str(directory / f"train.{lang}") for lang in self.langs],
            model_prefix=str(model.with_suffix("")),
            vocab_size=_VOCABULARY + (characters if many else 0),  # all that are covered, and more
            hard_vocab_limit=False,  # a small text has fewer pieces
            character_coverage=0.9995 if many else 1.0,
            minloglevel=2,
        )
        encode = sentencepiece.SentencePieceProcessor(model_file=str(model)).encode
        pairs = {}
        for split, sentences in parts.items():
            short = [
                pair for pair in sentences if max(map(len, map(encode, pair))) <= _LONGEST_PIECES
            ]
            write_pairs(directory, split, self.langs, short)
            pairs[split] = len(short)
        return {"text": origin, "pairs": pairs, "differences": []}

    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write binary data of the pieces, and how text comes to them."""
        text = out / "text"
        encode = sentencepiece.SentencePieceProcessor(model_file=str(text / _MODEL)).encode
        with TemporaryDirectory(dir=directory) as pieces:
            for name in (f"{split}.{lang}" for split in SPLITS for lang in self.langs):
                encoded = (encode(line, out_type=str) for line in read_lines(text / name))
                write_lines(Path(pieces, name), map(" ".join, encoded))
            binarise(Path(pieces), directory, self.langs)
        write_pieces(directory, "sentencepiece", text / _MODEL)
