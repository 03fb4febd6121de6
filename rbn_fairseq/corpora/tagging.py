"""Corpora for sequence tagging, from files of two columns to data for fairseq."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from rbn_fairseq.corpora import build
from rbn_fairseq.corpora.build import Corpus, check_files
from rbn_fairseq.corpora.text import Say, read_lines, sha256, write_lines
from rbn_fairseq.criterions.crf_rbn import entities
from rbn_fairseq.measuring.adapters import LABEL, TEXT

__all__ = ["STANDARDS", "Counts", "TaggedTexts", "read_tagged"]

_TAG = re.compile(r"O|[BIMES]-.+")
_RESERVED = ("<s>", "<pad>", "</s>")  # what fairseq takes for something else than a token


class Counts(NamedTuple):
    """Numbers of a part: texts, tokens, and entities as seqeval finds them."""

    texts: int
    tokens: int
    entities: Optional[int]


#: Corpora that others publish results on: their names, and the numbers of each part.
STANDARDS: dict[str, dict[str, Any]] = {
    "conll2003": {
        "name": "CoNLL-2003 English",
        "standard": {
            "train": Counts(14_041, 203_621, 23_499),
            "valid": Counts(3_250, 51_362, 5_942),
            "test": Counts(3_453, 46_435, 5_648),
        },
    },
    "resume": {
        "name": "Resume",
        "standard": {  # of characters; the numbers of entities are not published
            "train": Counts(3_821, 124_099, None),
            "valid": Counts(463, 13_890, None),
            "test": Counts(477, 15_100, None),
        },
    },
}


def read_tagged(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Read the tokens and tags of each text of a file.

    A line is a token, white space and its tag, of BIO, BIOES or BMES; empty lines part texts. That
    an entity begins with ``I-``, ``M-`` or ``E-`` is no error.

    Raises:
        ValueError: naming the line, if it is not like that.
    """
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split()
        if not columns:
            if tokens:
                yield tokens, tags
            tokens, tags = [], []
            continue
        if len(columns) != 2:
            raise ValueError(
                f"Line {number} of `{path}` has {len(columns)} columns: expected are a token, "
                "white space and its tag, or an empty line."
            )
        token, tag = columns
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"Line {number} of `{path}` has the tag `{tag}`: expected is O, or a type behind "
                "B-, I-, E-, S- or M-, such as B-PER."
            )
        if token in _RESERVED:
            raise ValueError(
                f"Line {number} of `{path}` has the token `{token}`, which fairseq uses for "
                "something else: expected is another spelling."
            )
        tokens.append(token)
        tags.append(tag)
    if tokens:
        yield tokens, tags


@dataclass(frozen=True)
class TaggedTexts(Corpus):
    """Files of tagged texts, and how they become a corpus.

    Attributes:
        train, valid, test: files.
        min_count: training tokens that occur less often are ``<unk>``.
        name: of the corpus.
        standard: the standard's numbers of each part; ``None`` = not known.
    """

    train: Path
    valid: Path
    test: Path
    min_count: int
    name: str = "tagged texts"
    standard: Optional[Mapping[str, Counts]] = None

    @property
    def files(self) -> dict[str, Path]:
        """The file of each part."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def request(self) -> dict[str, Any]:
        """Return the hashes of the files, and the least count of a token."""
        check_files(self.files)
        hashes = {split: sha256(path) for split, path in self.files.items()}
        return {"corpus": self.name, "sha256": hashes, "min count": self.min_count}

    def differences(self, counts: Mapping[str, Counts]) -> list[str]:
        """Return the differences of texts with these numbers from the standard."""
        return [
            f"{split} has {number:,} {name}, the standard has {expected:,}"
            for split, standard in (self.standard or {}).items()
            for name, number, expected in zip(Counts._fields, counts[split], standard, strict=True)
            if expected is not None and number != expected
        ]

    def write_text(self, directory: Path, say: Say) -> dict[str, Any]:
        """Write the texts and their tags, and the dictionary of tags, which has all parts'."""
        counts, tags = {}, Counter[str]()
        for split, path in self.files.items():
            counts[split], of_split = _write(directory, split, path)
            tags += of_split
        write_lines(directory / "tags", (f"{tag} {tags[tag]}" for tag in sorted(tags)))
        numbers = {split: part._asdict() for split, part in counts.items()}
        return {"counts": numbers, "tags": sorted(tags), "differences": self.differences(counts)}

    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write binary data, with a dictionary of tokens and one of tags."""
        # Of its own making the dictionary of tags would lack those that only a test has, and be
        # filled up to a multiple of 8.
        options = ("--tgtdict", str(out / "text" / "tags"), "--thresholdsrc", str(self.min_count))
        options += ("--workers", str(self.jobs))
        sides = (TEXT, LABEL)
        note["types"] = build.binarise(out / "text", directory, sides, *options, joined=False)


def _write(directory: Path, split: str, path: Path) -> tuple[Counts, Counter[str]]:
    """Write the texts and tags of a part; return its numbers, and how often each tag occurs."""
    texts = list(read_tagged(path))
    if not texts:
        raise ValueError(f"`{path}` has no text: expected are lines of a token and its tag.")
    for place, side in enumerate((TEXT, LABEL)):
        write_lines(directory / f"{split}.{side}", (" ".join(text[place]) for text in texts))
    tags = [tags for _, tags in texts]
    counts = Counts(len(texts), sum(map(len, tags)), len(entities(tags)))
    return counts, Counter(tag for text in tags for tag in text)
