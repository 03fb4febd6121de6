"""Corpora for text classification, from files of labels and texts to data for fairseq."""

import csv
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional

from rbn_fairseq.corpora.build import (
    SPECIAL_TYPES,
    binarise,
    load_note,
    make_stages,
    refuse_nonstandard,
    save_note,
)
from rbn_fairseq.corpora.text import SPLITS, Say, read_lines, sha256
from rbn_fairseq.measuring.adapters import LABEL, TEXT

__all__ = ["IMDB", "Texts", "build_texts", "read_texts", "tokenise"]

_BREAK = re.compile(r"<br\s*/?>|\\n")  # of HTML; of the archives of Zhang et al., in CSV
_TOKEN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_LONGEST = 1 << 30  # characters of a field


def tokenise(text: str) -> str:
    """Return a text in lower case, words and punctuation marks apart, line breaks left out."""
    return " ".join(_TOKEN.findall(_BREAK.sub(" ", text.lower())))


class _Row(NamedTuple):
    """A labelled text, and the number of its last line in the file."""

    line: int
    label: str
    text: str


def _rows_of_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST)
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise ValueError(
            f"Line {reader.line_num} of `{path}` is no CSV ({error}): expected is a class number "
            "and texts, with quotes around each field and quotes within it doubled."
        ) from error


def _rows_of_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(read_lines(path), 1):
        yield number, line.strip("\r").split("\t") if line.strip() else []


def read_texts(path: Path) -> Iterator[_Row]:
    """Read the labelled texts of a file; blank lines are left out.

    ``.tsv``: label, tab, text; or label, any other column, text. ``.csv``, as in the archives of
    Zhang et al. (2015, arXiv:1509.01626): a class number from 1, and one or more fields of text.
    Either may be compressed, with ``.gz`` behind.

    Raises:
        ValueError: naming the line, if it is not like that, or has not as many columns as the
            first one.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".csv", ".tsv"):
        raise ValueError(
            f"`{path}`: expected is a name that ends with .tsv or .csv, or .gz behind."
        )
    columns = 0
    for number, row in _rows_of_csv(path) if kind == ".csv" else _rows_of_tsv(path):
        if not row:
            continue
        columns = columns or len(row)
        label = "_".join(row[0].split())
        if kind == ".csv":
            good = len(row) > 1 and re.fullmatch("[1-9][0-9]*", label, re.ASCII)
            wanted = "a class number from 1 and at least one field of text"
        else:
            good = len(row) in (2, 3) and label
            wanted = "a label, a tab and a text, or one more column between them"
        if not good or len(row) != columns:
            raise ValueError(
                f"Line {number} of `{path}` has {len(row)} columns, the first one "
                f"`{row[0][:30]}`: expected is {wanted}; the first line has {columns} columns."
            )
        yield _Row(number, label, row[-1] if kind == ".tsv" else " ".join(row[1:]))


@dataclass(frozen=True)
class Texts:
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
        files = {"train": self.train, "valid": self.valid, "test": self.test}
        for split, path in files.items():
            if path is not None and not path.is_file():
                raise ValueError(f"--{split}: there is no file `{path}`.")
        return {
            "corpus": self.name,
            "sha256": {split: sha256(path) for split, path in files.items() if path is not None},
            "valid part": self.valid_part if self.valid is None else None,
            "seed": self.seed if self.valid is None else None,
            "types": self.types,
        }


IMDB = partial(Texts, name="IMDB", standard={"0": 12_500, "1": 12_500})


def _write(directory: Path, split: str, rows: Iterator[_Row]) -> dict[str, int]:
    """Write the texts and labels of a part; return the number of texts with each label."""
    labels: Counter[str] = Counter()
    with (
        (directory / f"{split}.{TEXT}").open("w", encoding="utf-8", newline="\n") as texts,
        (directory / f"{split}.{LABEL}").open("w", encoding="utf-8", newline="\n") as classes,
    ):
        for row in rows:
            labels[row.label] += 1
            texts.write(tokenise(row.text) + "\n")
            classes.write(row.label + "\n")
    return dict(sorted(labels.items()))


def _known(path: Path, rows: Iterator[_Row], labels: Collection[str]) -> Iterator[_Row]:
    for row in rows:
        if row.label not in labels:
            raise ValueError(
                f"Line {row.line} of `{path}` has the label `{row.label}`: expected is one of the "
                f"training texts', {', '.join(sorted(labels)[:10])}."
            )
        yield row


def _write_all(corpus: Texts, directory: Path) -> dict[str, dict[str, int]]:
    """Write all parts; return the number of texts with each label in each of them."""
    total, drawn = 0, set()
    if corpus.valid is None:
        total = sum(1 for _ in read_texts(corpus.train))
        number = round(corpus.valid_part * total)
        drawn = {*random.Random(corpus.seed).sample(range(total), number)}
    rows = enumerate(read_texts(corpus.train))
    train = _write(directory, "train", (row for place, row in rows if place not in drawn))
    if len(train) < 2:
        raise ValueError(
            f"`{corpus.train}` has {len(train)} labels to train on: expected are two or more."
        )
    numbers = {"train": train}
    for split, path in (("valid", corpus.valid), ("test", corpus.test)):
        if path is None:
            path, places = corpus.train, enumerate(read_texts(corpus.train))
            rows_of_split = (row for place, row in places if place in drawn)
        else:
            rows_of_split = read_texts(path)
        numbers[split] = _write(directory, split, _known(path, rows_of_split, train))
        if not numbers[split]:
            raise ValueError(f"There are no texts for `{split}`: `{path}` is too small.")
    return numbers


def _differences(corpus: Texts, numbers: Mapping[str, Mapping[str, int]]) -> list[str]:
    if corpus.standard is None:
        return []
    differences = []
    for splits in (("train", "valid"), ("test",)):
        both = sum((Counter(numbers[split]) for split in splits), Counter())
        if both != corpus.standard:
            differences.append(
                f"{' and '.join(splits)}: texts by label are {dict(sorted(both.items()))}, the "
                f"standard has {dict(corpus.standard)}"
            )
    return differences


def build_texts(
    corpus: Texts, out: Path, allow_nonstandard: bool, jobs: int, say: Say
) -> dict[str, Any]:
    """Make a corpus in ``out``, or go on where an earlier call was stopped.

    ``out/text`` has tokenised texts and their labels, ``out/bin`` what fairseq reads and
    ``about.json``, which is returned.

    Args:
        corpus: of what files.
        out: directory.
        allow_nonstandard: take texts that differ from the standard.
        jobs: processes at a time.
        say: takes a line for the user.

    Raises:
        ValueError: if a file cannot be read or is not the standard, or ``out`` is for another
            request.
    """
    request = corpus.request()

    def text(directory: Path) -> None:
        say("writing the tokenised text")
        numbers = _write_all(corpus, directory)
        differences = _differences(corpus, numbers)
        refuse_nonstandard(corpus.name, differences, allow_nonstandard)
        save_note(directory / "about.json", {"labels": numbers, "differences": differences})

    def binary(directory: Path) -> None:
        say("running fairseq-preprocess")
        # Without a factor of 1, fairseq fills dictionaries up to a multiple of 8: with classes.
        options = ("--nwordssrc", str(corpus.types), "--padding-factor", "1")
        workers = ("--workers", str(jobs))
        binarise(out / "text", directory, (TEXT, LABEL), *options, *workers, joined=False)
        note = load_note(out / "text" / "about.json")
        about = {
            "corpus": corpus.name,
            "standard": corpus.standard is not None and not note["differences"],
            "differences": note["differences"],
            "texts": {split: sum(note["labels"][split].values()) for split in SPLITS},
            "labels": note["labels"],
            "types": sum(1 for _ in read_lines(directory / f"dict.{TEXT}.txt")) + SPECIAL_TYPES,
            "request": request,
        }
        save_note(directory / "about.json", about)

    return make_stages(out, request, {"text": text, "bin": binary}, say)
