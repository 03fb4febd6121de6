"""Corpora for text classification, from files of labels and texts to data for fairseq."""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

import regex

from rbn_fairseq.corpora import build
from rbn_fairseq.corpora.build import Corpus, hash_files
from rbn_fairseq.corpora.text import read_lines, write_lines
from rbn_fairseq.measuring.adapters import LABEL, TEXT

__all__ = ["STANDARDS", "Texts", "read_texts", "tokenise"]

_BREAK = regex.compile(r"<br\s*/?>")
# A word begins with no combining mark, and may have some; another character keeps its own.
_WORD = r"(?!\p{M})[\w\p{N}]+"
_TOKEN = regex.compile(rf"{_WORD}(?:['’]{_WORD})*|[^\w\p{{N}}\s]\p{{M}}*|\p{{M}}+")


def tokenise(text: str) -> str:
    """Return a text in lower case, words and punctuation marks apart, line breaks left out."""
    return " ".join(_TOKEN.findall(_BREAK.sub(" ", text.lower())))


class _Row(NamedTuple):
    """A labelled text, and the number of its last line in the file."""

    line: int
    label: str
    text: str


def read_texts(path: Path) -> Iterator[_Row]:
    """Read the labelled texts of a file: label, tab, text, or with one more column between them.

    Blank lines are left out. The file may be compressed, with ``.gz`` at the end of its name.

    Raises:
        ValueError: naming the line, if it is not like that, or has not as many columns as the
            first one.
    """
    wanted = (1, 2)  # columns behind the label
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        label, *columns = line.split("\t")
        label = "_".join(label.split())
        if not label or len(columns) not in wanted:
            raise ValueError(
                f"Line {number} of `{path}` has {len(columns)} tabs and begins with `{line[:30]}`: "
                "expected is a label, a tab and a text, or in all lines one more column between "
                "them."
            )
        wanted = (len(columns),)
        yield _Row(number, label, columns[-1])


@dataclass(frozen=True)
class Texts(Corpus):
    """Files of labelled texts, and how they become a corpus.

    Attributes:
        train, test: files.
        valid: file; ``None`` = a part of the training texts.
        valid_part: that part.
        seed: of the choice of them.
        types: size of the dictionary of words, fairseq's special types included.
        name: of the corpus.
        standard: number of texts with each label, in the training and validation set together and
            in the test set; ``None`` = not known.
    """

    train: Path
    test: Path
    valid: Optional[Path] = None
    valid_part: float = 0.3
    seed: int = 1
    types: int = 100_000
    name: str = "texts"
    standard: Optional[Mapping[str, int]] = None

    def request(self) -> dict[str, Any]:
        """Return all that the result depends on, for JSON."""
        valid = {} if self.valid is None else {"valid": self.valid}
        return {
            "corpus": self.name,
            "sha256": hash_files({"train": self.train, **valid, "test": self.test}),
            "valid part": self.valid_part if self.valid is None else None,
            "seed": self.seed if self.valid is None else None,
            "types": self.types,
        }

    def write_text(self, directory: Path) -> dict[str, Any]:
        """Write tokenised texts and their labels."""
        train, test = (list(read_texts(path)) for path in (self.train, self.test))
        if self.valid is not None:
            valid = list(read_texts(self.valid))
        else:
            number = round(self.valid_part * len(train))
            drawn = {*random.Random(self.seed).sample(range(len(train)), number)}
            valid = [row for place, row in enumerate(train) if place in drawn]
            train = [row for place, row in enumerate(train) if place not in drawn]
        labels = {}
        for split, path, rows in (
            ("train", self.train, train),
            ("valid", self.valid or self.train, valid),
            ("test", self.test, test),
        ):
            labels[split] = dict(sorted(Counter(row.label for row in rows).items()))
            _check_labels(split, path, rows, labels["train"])
            write_lines(directory / f"{split}.{TEXT}", (tokenise(row.text) for row in rows))
            write_lines(directory / f"{split}.{LABEL}", (row.label for row in rows))
        texts = {split: sum(numbers.values()) for split, numbers in labels.items()}
        trained = dict(Counter(labels["train"]) + Counter(labels["valid"]))
        differences = [
            f"{part}: texts by label are {numbers}, the standard has {dict(self.standard)}"
            for part, numbers in (("train and valid", trained), ("test", labels["test"]))
            if self.standard is not None and numbers != self.standard
        ]
        return {"texts": texts, "labels": labels, "differences": differences}

    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write binary data, with a dictionary of words and one of labels."""
        # Without a factor of 1, fairseq fills dictionaries up to a multiple of 8: with classes.
        options = ("--nwordssrc", str(self.types), "--padding-factor", "1")
        options += ("--workers", str(self.jobs))
        sides = (TEXT, LABEL)
        note["types"] = build.binarise(out / "text", directory, sides, *options, joined=False)


#: Corpora that others publish results on: their names, and the number of texts with each label.
STANDARDS: dict[str, dict[str, Any]] = {
    "imdb": {"name": "IMDB", "standard": {"0": 12_500, "1": 12_500}}
}


def _check_labels(split: str, path: Path, rows: list[_Row], labels: Collection[str]) -> None:
    """Refuse a part without texts, or with other labels than the training texts'."""
    if len(labels) < 2:
        raise ValueError(
            f"`{path}` has {len(labels)} labels to train on: expected are two or more."
        )
    if not rows:
        raise ValueError(f"There are no texts for `{split}`: `{path}` is too small.")
    for row in rows:
        if row.label not in labels:
            raise ValueError(
                f"Line {row.line} of `{path}` has the label `{row.label}`: expected is one of "
                f"{', '.join(sorted(labels)[:10])}, which are trained on. Where validation texts "
                "are drawn, take another --seed or a smaller --valid-part."
            )
