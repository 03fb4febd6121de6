"""A corpus in stages, each whole or absent: text, BPE, binary data."""

import io
import json
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from multiprocessing import Pool
from pathlib import Path
from typing import Any, ClassVar, Optional

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from rbn_fairseq.corpora.text import SPLITS, Say, read_lines, sha256, write_lines
from rbn_fairseq.pieces import write_pieces
from rbn_fairseq.writing import write_whole

__all__ = [
    "SPECIAL_TYPES",
    "Corpus",
    "apply_merges",
    "binarise",
    "build",
    "learn_merges",
    "load_note",
    "make_stages",
    "preprocess",
    "refuse_nonstandard",
    "save_note",
]

SPECIAL_TYPES = 4  # fairseq's <s>, <pad>, </s>, <unk>, which are not in the file


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


@cache  # in the processes, each of which serves one file of codes
def _read_codes(codes: Path) -> BPE:
    with codes.open(encoding="utf-8", newline="\n") as file:
        return BPE(file)


def _apply(codes: Path, line: str) -> str:
    return str(_read_codes(codes).process_line(line))


def apply_merges(text: Path, codes: Path, directory: Path, langs: Sequence[str], jobs: int) -> None:
    """Write all files of ``text`` in subword units to ``directory``, by ``jobs`` processes."""
    # An interrupt is for this process alone, which ends the others.
    with Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
            units = pool.imap(partial(_apply, codes), read_lines(text / name), chunksize=1000)
            write_lines(directory / name, units)


def binarise(
    text: Path, out: Path, langs: Sequence[str], *options: str, joined: bool = True
) -> None:
    """Run fairseq-preprocess on ``text/{train,valid,test}.{source,target}``.

    Args:
        text: directory of text in subword units.
        out: directory to make.
        langs: source and target.
        options: further ones of fairseq-preprocess.
        joined: whether both sides have one dictionary.

    Raises:
        ValueError: if fairseq-preprocess fails.
    """
    prefixes = [f"--{split}pref={text / split}" for split in SPLITS]
    sides = ["-s", langs[0], "-t", langs[1], *(["--joined-dictionary"] if joined else [])]
    preprocess("--destdir", str(out), *prefixes, *sides, *options)


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


@dataclass(frozen=True)
class Corpus(ABC):
    """The steps that make one corpus, and the standard: the text that others train on.

    Attributes:
        path: what it is made of.
        jobs: processes at a time.
        merges: of its joint BPE.
        name: of the corpus.
        langs: source and target.
        pairs: the standard's number of pairs of each part.
        hashes: SHA-256 of files of the standard's tokenised text, by name.
        standard_merges: the standard's number of merges.
        options: of fairseq-preprocess, for this corpus.
        tokens: the part of ``pieces.json`` about tokens; ``None`` where the merges are not known.
    """

    path: Path
    jobs: int
    merges: int
    name: ClassVar[str]
    langs: ClassVar[tuple[str, str]]
    pairs: ClassVar[Mapping[str, int]]
    hashes: ClassVar[Mapping[str, str]] = {}
    standard_merges: ClassVar[int]
    options: ClassVar[tuple[str, ...]] = ()
    tokens: ClassVar[Optional[Mapping[str, Any]]] = None

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """Return all that the result depends on, for JSON: two that are equal make the same."""

    @abstractmethod
    def write_text(self, directory: Path, say: Say) -> Optional[str]:
        """Write tokenised text without BPE; return the tokeniser, ``None`` if it came tokenised."""

    @abstractmethod
    def write_bpe(self, text: Path, directory: Path) -> None:
        """Write the text in subword units, and the merges, where they are known, as ``code``."""

    def differences(self, text: Path, pairs: Mapping[str, int]) -> list[str]:
        """Return the differences of text with ``pairs`` from the standard, a sentence each."""
        differences = [
            f"{split} has {pairs[split]:,} pairs, the standard has {expected:,}"
            for split, expected in self.pairs.items()
            if pairs[split] != expected
        ]
        return differences + [
            f"{name} differs from the standard file"
            for name, expected in self.hashes.items()
            if sha256(text / name) != expected
        ]


def load_note(path: Path) -> dict[str, Any]:
    """Read a file of JSON."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def save_note(path: Path, value: Any) -> None:
    """Write a file of JSON."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _claim(out: Path, request: Mapping[str, Any]) -> None:
    """Write ``out/request.json``.

    Raises:
        ValueError: if ``out`` holds a stage of another request, or of no request.
    """
    note = out / "request.json"
    if not any((out / part).exists() for part in ("text", "bpe", "bin")):
        save_note(note, request)
        return
    earlier = load_note(note) if note.exists() else {}
    others = [key for key in request if earlier.get(key) != request[key]]
    if others:
        raise ValueError(
            f"--output: `{out}` was made with another value of {', '.join(others)} ({note.name} in "
            "it). Choose another directory with --output, or remove that one."
        )


def _stage(directory: Path, make: Callable[[Path], None]) -> None:
    """Make a directory, unless it is there: under another name until it is whole."""
    if directory.exists():
        return
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    make(unfinished)
    unfinished.rename(directory)


def make_stages(
    out: Path, request: Mapping[str, Any], stages: Mapping[str, Callable[[Path], None]], say: Say
) -> dict[str, Any]:
    """Make the stages of a corpus, or go on where an earlier call was stopped.

    Args:
        out: directory.
        request: all that the result depends on.
        stages: what makes each, by its name, in order; the last is ``bin``, with ``about.json``.
        say: takes a line for the user.

    Returns:
        The content of ``about.json``.

    Raises:
        ValueError: if ``out`` is for another request.
    """
    _claim(out, request)
    about = out / "bin" / "about.json"
    if about.parent.exists():
        say(f"`{out}` is finished already; nothing was done")
    for name, make in stages.items():
        if not about.parent.exists():
            _stage(out / name, make)
    return load_note(about)


def refuse_nonstandard(corpus: str, differences: Sequence[str], allowed: bool) -> None:
    """Refuse a text that differs from the standard, unless it is allowed (``ValueError``)."""
    if differences and not allowed:
        raise ValueError(
            f"This is not the standard {corpus}: {'; '.join(differences)}. With "
            "--allow-nonstandard it is prepared as it is, and marked as not standard."
        )


def _count_pairs(text: Path, split: str, langs: Sequence[str]) -> int:
    source, target = (sum(1 for _ in read_lines(text / f"{split}.{lang}")) for lang in langs)
    if source != target:
        raise ValueError(
            f"{split}.{langs[0]} has {source:,} lines, {split}.{langs[1]} {target:,}. Line k of "
            "one must translate line k of the other."
        )
    return source


def build(corpus: Corpus, out: Path, allow_nonstandard: bool, say: Say) -> dict[str, Any]:
    """Make a corpus in ``out``, or go on where an earlier call was stopped.

    ``out/text`` has tokenised text, ``out/bpe`` the same in subword units and the merges,
    ``out/bin`` what fairseq reads and ``about.json``, which is returned.

    Args:
        corpus: which one, of what.
        out: directory.
        allow_nonstandard: take a text that differs from the standard.
        say: takes a line for the user.

    Raises:
        ValueError: if the text cannot be had or is not the standard, or ``out`` is for another
            request.
    """
    request = corpus.request()

    def text(directory: Path) -> None:
        say("writing the tokenised text")
        tokeniser = corpus.write_text(directory, say)
        pairs = {split: _count_pairs(directory, split, corpus.langs) for split in SPLITS}
        differences = corpus.differences(directory, pairs)
        refuse_nonstandard(corpus.name, differences, allow_nonstandard)
        note = {"pairs": pairs, "differences": differences, "tokeniser": tokeniser}
        save_note(directory / "about.json", note)

    def bpe(directory: Path) -> None:
        say("applying BPE")
        corpus.write_bpe(out / "text", directory)

    def binary(directory: Path) -> None:
        say("running fairseq-preprocess")
        workers = ("--workers", str(corpus.jobs))
        binarise(out / "bpe", directory, corpus.langs, *corpus.options, *workers)
        note = load_note(out / "text" / "about.json")
        differences = note["differences"]
        if corpus.merges != corpus.standard_merges:
            differences.append(
                f"{corpus.merges:,} merges were asked for, the standard has "
                f"{corpus.standard_merges:,}"
            )
        with (directory / f"dict.{corpus.langs[0]}.txt").open("rb") as file:
            types = sum(1 for _ in file) + SPECIAL_TYPES
        code = out / "bpe" / "code"
        about = {
            "corpus": corpus.name,
            "standard": not differences,
            "differences": differences,
            "pairs": note["pairs"],
            "tokeniser": note["tokeniser"],
            "merges": len(_read_codes(code).bpe_codes) if code.exists() else corpus.merges,
            "types": types,
            "request": request,
        }
        save_note(directory / "about.json", about)
        if corpus.tokens is not None:
            write_pieces(directory, "subword_nmt", code, **corpus.tokens)

    return make_stages(out, request, {"text": text, "bpe": bpe, "bin": binary}, say)
