"""Corpora for sequence tagging, from files of two columns to data for fairseq."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Optional

from rbn_fairseq.corpora import build
from rbn_fairseq.corpora.build import Corpus, count_differences, hash_files
from rbn_fairseq.corpora.text import check_tokens, read_lines, write_lines
from rbn_fairseq.criterions.crf_rbn import entities
from rbn_fairseq.measuring.adapters import LABEL, TEXT

__all__ = ["STANDARDS", "TaggedTexts", "read_tagged"]

_TAG = re.compile(r"O|[BIMES]-.+")


#: Corpora that others publish results on: their names, and the numbers of each part.
STANDARDS: dict[str, dict[str, Any]] = {
    "conll2003": {
        "name": "CoNLL-2003 English",
        "standard": {
            "texts": {"train": 14_041, "valid": 3_250, "test": 3_453},
            "tokens": {"train": 203_621, "valid": 51_362, "test": 46_435},
            "entities": {"train": 23_499, "valid": 5_942, "test": 5_648},
        },
    },
    "resume": {
        "name": "Resume",
        "standard": {  # of characters; the numbers of entities are not published
            "texts": {"train": 3_821, "valid": 463, "test": 477},
            "tokens": {"train": 124_099, "valid": 13_890, "test": 15_100},
        },
    },
}


def read_tagged(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Read the tokens and tags of each text of a file.

    A line is a token, white space and its tag, of BIO, BIOES or BMES, maybe with columns between
    them; empty lines part texts, and those of ``-DOCSTART-`` are left out. That an entity begins
    with ``I-``, ``M-`` or ``E-`` is no error.

    Raises:
        ValueError: naming the line, if it is not like that, or has not as many columns as the
            first one.
    """
    tokens: list[str] = []
    tags: list[str] = []
    wanted = 0
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split()
        if not columns:
            if tokens:
                yield tokens, tags
            tokens, tags = [], []
            continue
        token, tag = columns[0], columns[-1]
        if token == "-DOCSTART-":
            continue
        wanted = wanted or max(len(columns), 2)
        if len(columns) != wanted:
            raise ValueError(
                f"Line {number} of `{path}` has not {wanted} columns: expected are a token, white "
                "space and, as the last column, its tag; or an empty line."
            )
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"Line {number} of `{path}` has the tag `{tag}`: expected is O, or a type behind "
                "B-, I-, E-, S- or M-, such as B-PER."
            )
        check_tokens(path, number, [token])
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
        standard: the standard's numbers of texts, tokens and entities (as seqeval finds them) in
            each part; ``None`` = not known.
    """

    train: Path
    valid: Path
    test: Path
    min_count: int
    name: str = "tagged texts"
    standard: Optional[Mapping[str, Mapping[str, int]]] = None

    @property
    def files(self) -> dict[str, Path]:
        """The file of each part."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def request(self) -> dict[str, Any]:
        """Return the hashes of the files, and the least count of a token."""
        hashes = hash_files(self.files)
        return {"corpus": self.name, "sha256": hashes, "min count": self.min_count}

    def write_text(self, directory: Path) -> dict[str, Any]:
        """Write the texts and their tags, and the dictionary of tags, which has all parts'."""
        numbers: dict[str, dict[str, int]] = {"texts": {}, "tokens": {}, "entities": {}}
        counts = Counter[str]()
        for split, path in self.files.items():
            texts = list(read_tagged(path))
            if not texts:
                raise ValueError(
                    f"`{path}` has no text: expected are lines of a token and its tag."
                )
            for place, side in enumerate((TEXT, LABEL)):
                lines = (" ".join(text[place]) for text in texts)
                write_lines(directory / f"{split}.{side}", lines)
            tags = [tags for _, tags in texts]
            numbers["texts"][split] = len(texts)
            numbers["tokens"][split] = sum(map(len, tags))
            numbers["entities"][split] = len(entities(tags))
            counts.update(chain.from_iterable(tags))
        write_lines(directory / "tags", (f"{tag} {counts[tag]}" for tag in sorted(counts)))
        differences = [
            difference
            for unit, standard in (self.standard or {}).items()
            for difference in count_differences(unit, numbers[unit], standard)
        ]
        return {**numbers, "tags": sorted(counts), "differences": differences}

    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write binary data, with a dictionary of tokens and one of tags."""
        # Of its own making the dictionary of tags would lack those that only a test has, and be
        # filled up to a multiple of 8.
        options = ("--tgtdict", str(out / "text" / "tags"), "--thresholdsrc", str(self.min_count))
        options += ("--workers", str(self.jobs))
        sides = (TEXT, LABEL)
        note["types"] = build.binarise(out / "text", directory, sides, *options, joined=False)
