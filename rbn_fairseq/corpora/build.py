"""A corpus in stages, each whole or absent: text, BPE, binary data."""

import io
import json
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Optional

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from rbn_fairseq.corpora.text import SPLITS, check_text, read_lines, sha256, write_lines
from rbn_fairseq.pieces import write_pieces
from rbn_fairseq.writing import write_whole

__all__ = [
    "Corpus", "PairCorpus", "apply_merges", "binarise", "build", "count_differences",
    "hash_files", "learn_merges", "preprocess", "stage",
]  # fmt: skip

_SPECIAL_TYPES = 4  # fairseq's <s>, <pad>, </s>, <unk>, which are not in the file


def learn_merges(text: Path, codes: Path, langs: Sequence[str], merges: int) -> None:
    """Learn the merges of a joint BPE on the training text, source then target, and write them.

    Source: Sennrich et al. (2016), arXiv:1508.07909; by subword-nmt.

    There are fewer than ``merges`` if no further pair of pieces occurs twice.
    """
    lines = chain.from_iterable(read_lines(text / f"train.{lang}") for lang in langs)
    # A bar of progress is for a terminal only; it would fill a log.
    quiet = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with codes.open("w", encoding="utf-8", newline="\n") as file, quiet:
        learn_bpe(lines, file, merges)


def _read_codes(codes: Path) -> BPE:
    with codes.open(encoding="utf-8", newline="\n") as file:
        return BPE(file)


def apply_merges(text: Path, codes: Path, directory: Path, langs: Sequence[str]) -> None:
    """Write all files of ``text`` in subword units to ``directory``."""
    bpe = _read_codes(codes)
    for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
        write_lines(directory / name, map(bpe.process_line, read_lines(text / name)))


def binarise(
    text: Path, out: Path, langs: Sequence[str], *options: str, joined: bool = True
) -> int:
    """Run fairseq-preprocess on ``text/{train,valid,test}.{source,target}``, in subword units.

    Returns:
        The number of the source's types, fairseq's special ones included.

    Raises:
        ValueError: if it fails.
    """
    prefixes = [f"--{split}pref={text / split}" for split in SPLITS]
    sides = ["-s", langs[0], "-t", langs[1], *(["--joined-dictionary"] if joined else [])]
    preprocess("--destdir", str(out), *prefixes, *sides, *options)
    return sum(1 for _ in read_lines(out / f"dict.{langs[0]}.txt")) + _SPECIAL_TYPES


def preprocess(*options: str) -> None:
    """Run fairseq-preprocess.

    Raises:
        ValueError: if it fails; the message ends with its last line of output.
    """
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        output = done.stderr.strip() or f"exit status {done.returncode}"
        raise ValueError("fairseq-preprocess failed: " + output.split("\n")[-1][-500:])


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their options; one that is not there is a ``ValueError``."""
    for option, path in files.items():
        if not path.is_file():
            raise ValueError(f"--{option}: there is no file `{path}`.")
    return {option: sha256(path) for option, path in files.items()}


def count_differences(
    unit: str, counts: Mapping[str, int], standard: Mapping[str, int]
) -> list[str]:
    """Return in which parts the numbers of ``unit`` are not the standard's, a sentence each."""
    return [
        f"{split} has {counts[split]:,} {unit}, the standard has {expected:,}"
        for split, expected in standard.items()
        if counts[split] != expected
    ]


@dataclass(frozen=True)
class Corpus(ABC):
    """A corpus: what it is made of, and the steps that make it.

    Attributes:
        jobs: processes at a time.
        name: of the corpus.
        standard: numbers of the standard, the text that others train on; ``None`` = not known.
    """

    jobs: int = field(default=1, kw_only=True)
    # Without a type, which would make them fields, before those of subclasses.
    name = ""
    standard = None

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """Return all that the result depends on, for JSON: two that are equal make the same.

        Raises:
            ValueError: if a file is not there.
        """

    @abstractmethod
    def write_text(self, directory: Path) -> dict[str, Any]:
        """Write text without BPE; return its numbers, and its ``differences`` from the standard.

        Raises:
            ValueError: if a file cannot be read.
        """

    @abstractmethod
    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write what fairseq reads, made of the stages in ``out``; add numbers to the note."""


@dataclass(frozen=True)
class PairCorpus(Corpus):
    """Pairs of sentences, in subword units of a joint BPE.

    Attributes:
        path: what it is made of.
        merges: of the BPE.
        langs: source and target.
        standard: the standard's number of pairs of each part.
        hashes: SHA-256 of files of the standard's tokenised text, by name.
        standard_merges: the standard's number of merges.
        options: of fairseq-preprocess, for this corpus.
        tokens: the part of ``pieces.json`` about tokens; ``None`` where the merges are not known.
    """

    path: Path
    merges: int
    langs: ClassVar[tuple[str, str]]
    standard: ClassVar[Mapping[str, int]]
    hashes: ClassVar[Mapping[str, str]] = {}
    standard_merges: ClassVar[int]
    options: ClassVar[tuple[str, ...]] = ()
    tokens: ClassVar[Optional[Mapping[str, Any]]] = None

    @abstractmethod
    def write_tokens(self, directory: Path) -> Optional[str]:
        """Write tokenised text without BPE; return the tokeniser, ``None`` if it came tokenised."""

    @abstractmethod
    def write_bpe(self, text: Path, directory: Path) -> None:
        """Write the text in subword units, and the merges, where they are known, as ``code``."""

    def write_text(self, directory: Path) -> dict[str, Any]:
        """Write the tokenised text; compare it with the standard."""
        tokeniser = self.write_tokens(directory)
        pairs = {split: self._count_pairs(directory, split) for split in SPLITS}
        differences = count_differences("pairs", pairs, self.standard) + [
            f"{name} differs from the standard file"
            for name, expected in self.hashes.items()
            if sha256(directory / name) != expected
        ]
        return {"pairs": pairs, "differences": differences, "tokeniser": tokeniser}

    def _count_pairs(self, text: Path, split: str) -> int:
        source, target = (check_text(text / f"{split}.{lang}") for lang in self.langs)
        if source != target:
            raise ValueError(
                f"{split}.{self.langs[0]} has {source:,} lines, {split}.{self.langs[1]} "
                f"{target:,}. Line k of one must translate line k of the other."
            )
        return source

    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write binary data, and how text comes to their pieces."""
        code = out / "bpe" / "code"
        workers = ("--workers", str(self.jobs))
        note["types"] = binarise(code.parent, directory, self.langs, *self.options, *workers)
        if self.merges != self.standard_merges:
            note["differences"].append(
                f"{self.merges:,} merges were asked for, the standard has {self.standard_merges:,}"
            )
        note["merges"] = len(_read_codes(code).bpe_codes) if code.exists() else self.merges
        if self.tokens is not None:
            write_pieces(directory, "subword_nmt", code, **self.tokens)


def _load(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"`{path}` is damaged: remove its directory and prepare anew.") from error


def _save(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _claim(out: Path, request: Mapping[str, Any]) -> None:
    """Write ``out/request.json``.

    Raises:
        ValueError: if ``out`` holds a stage of another request, or of no request.
    """
    note = out / "request.json"
    there = [part for part in ("text", "bpe", "bin") if (out / part).exists()]
    if not there:
        _save(note, request)
        return
    earlier = _load(note) if note.exists() else {}
    others = [key for key in request if earlier.get(key) != request[key]]
    if others:
        if earlier:
            made = f"was made with another value of {', '.join(others)} ({note.name} in it)"
        else:
            made = f"holds `{there[0]}`, and no {note.name} of `rbn prepare`"
        raise ValueError(
            f"--output: `{out}` {made}. Choose another directory with --output, or remove that one."
        )


def stage(directory: Path, make: Callable[[Path], None]) -> None:
    """Make a directory, unless it is there: under another name until it is whole."""
    if directory.exists():
        return
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    make(unfinished)
    unfinished.rename(directory)


def build(
    corpus: Corpus, out: Path, allow_nonstandard: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Make a corpus in ``out``, or go on where an earlier call was stopped.

    ``out/text`` has tokenised text, ``out/bpe`` of pairs the same in subword units and the merges,
    ``out/bin`` what fairseq reads and ``about.json``, which is returned.

    ``allow_nonstandard`` takes a text that differs from the standard; ``say`` takes a line for the
    user.

    Raises:
        ValueError: if the text cannot be had or is not the standard, or ``out`` is for another
            request.
    """
    request = corpus.request()
    about = out / "bin" / "about.json"

    def text(directory: Path) -> None:
        say("writing the text")
        note = corpus.write_text(directory)
        if note["differences"] and not allow_nonstandard:
            raise ValueError(
                f"This is not the standard {corpus.name}: {'; '.join(note['differences'])}. With "
                "--allow-nonstandard it is prepared as it is, and marked as not standard."
            )
        _save(directory / about.name, note)

    def bpe(directory: Path) -> None:
        say("applying BPE")
        corpus.write_bpe(out / "text", directory)

    def binary(directory: Path) -> None:
        say("running fairseq-preprocess")
        note = _load(out / "text" / about.name)
        corpus.write_binary(out, directory, note)
        standard = corpus.standard is not None and not note["differences"]
        about_corpus = {"corpus": corpus.name, "standard": standard, **note, "request": request}
        _save(directory / about.name, about_corpus)

    _claim(out, request)
    if about.parent.exists():
        say(f"`{out}` is finished already")
    else:
        stage(out / "text", text)
        if isinstance(corpus, PairCorpus):
            stage(out / "bpe", bpe)
        stage(out / "bin", binary)
    return _load(about)
