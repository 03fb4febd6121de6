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
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Optional

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from rbn_fairseq.corpora.text import (
    SPLITS,
    Say,
    announced,
    count_pairs,
    map_chunks,
    process_pool,
    read_lines,
    sha256,
    write_lines,
)
from rbn_fairseq.pieces import write_pieces
from rbn_fairseq.writing import write_whole

__all__ = [
    "Recipe",
    "Standard",
    "apply_merges",
    "binarise",
    "build",
    "check_codes",
    "learn_merges",
]

_SPECIAL_TYPES = 4  # fairseq's <s>, <pad>, </s>, <unk>, which are not in the file


@dataclass(frozen=True)
class Standard:
    """The text that others train on.

    Attributes:
        pairs: number of pairs of each part.
        sha256: hashes of files of the tokenised text, by name.
    """

    pairs: Mapping[str, int]
    sha256: Mapping[str, str] = field(default_factory=dict)

    def differences(self, text: Path, pairs: Mapping[str, int]) -> list[str]:
        """Return the differences of a directory of text with ``pairs``, a sentence each."""
        differences = [
            f"{split} has {pairs[split]:,} pairs, the standard has {expected:,}"
            for split, expected in self.pairs.items()
            if pairs[split] != expected
        ]
        for name, expected in self.sha256.items():
            hashed = sha256(text / name)
            if hashed != expected:
                differences.append(
                    f"{name} differs from the standard file (SHA-256 {hashed[:12]}…, not "
                    f"{expected[:12]}…)"
                )
        return differences


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


def check_codes(codes: Path) -> int:
    """Return how many merges a file of codes has.

    Raises:
        ValueError: if it is not one.
    """
    if not codes.is_file():
        raise ValueError(f"--bpe-codes: there is no file `{codes}`.")
    refusal = io.StringIO()
    try:
        with redirect_stderr(refusal):
            return len(_read_codes(codes).bpe_codes)
    except (SystemExit, ValueError) as error:  # subword-nmt would end the process
        reason = refusal.getvalue().split("\n")[0] or error
        raise ValueError(
            f"--bpe-codes: `{codes}` must be what subword-nmt learn-bpe wrote. {reason}"
        ) from None


def _apply(codes: Path, lines: Sequence[str]) -> list[str]:
    bpe = _read_codes(codes)
    return [bpe.process_line(line) for line in lines]


def apply_merges(
    text: Path, codes: Path, directory: Path, langs: Sequence[str], jobs: int, say: Say
) -> None:
    """Write all files of ``text`` in subword units to ``directory``."""
    with process_pool(jobs) as pool:
        for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
            units = map_chunks(partial(_apply, codes), read_lines(text / name), pool, 2 * jobs)
            write_lines(directory / name, announced(units, f"applying BPE to {name}", say))


def binarise(text: Path, out: Path, langs: Sequence[str], *options: str) -> None:
    """Run fairseq-preprocess on ``text/{train,valid,test}.{source,target}``, one dictionary.

    Args:
        text: directory of text in subword units.
        out: directory to make.
        langs: source and target.
        options: further ones of fairseq-preprocess.

    Raises:
        ValueError: if fairseq-preprocess fails; the message ends with its last line of output.
    """
    prefixes = [f"--{split}pref={text / split}" for split in SPLITS]
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--joined-dictionary", *prefixes]
    command += ["-s", langs[0], "-t", langs[1], "--destdir", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        output = done.stderr.strip() or f"exit status {done.returncode}"
        raise ValueError("fairseq-preprocess failed: " + output.split("\n")[-1][-500:])


class Recipe(ABC):
    """The steps that make one corpus, and its standard.

    Attributes:
        name: of the corpus.
        langs: source and target.
        standard: the text that others train on.
        options: of fairseq-preprocess, for this corpus.
        raw: whether raw text is kept, in a stage of its own.
        tokens: the part of ``pieces.json`` about tokens; ``None`` where the merges are not known.
    """

    name: ClassVar[str]
    langs: ClassVar[tuple[str, str]]
    standard: ClassVar[Standard]
    options: ClassVar[tuple[str, ...]] = ()
    raw: ClassVar[bool] = False
    tokens: ClassVar[Optional[Mapping[str, Any]]] = None
    jobs: int

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """Return all that the result depends on, for JSON: two that are equal make the same."""

    def write_raw(self, directory: Path) -> None:
        """Write the raw text that is kept."""
        raise NotImplementedError

    @abstractmethod
    def write_text(self, directory: Path, say: Say) -> Optional[str]:
        """Write tokenised text without BPE; return the tokeniser, ``None`` if it came tokenised."""

    def judge(self, text: Path, pairs: Mapping[str, int]) -> tuple[list[str], bool]:
        """Return the text's differences from the standard, and whether they are acceptable."""
        differences = self.standard.differences(text, pairs)
        return differences, not differences

    @abstractmethod
    def write_bpe(self, text: Path, directory: Path, say: Say) -> None:
        """Write the text in subword units, and the merges as ``code``."""

    def count_merges(self, bpe: Path) -> int:
        """Count the merges of the BPE, which may be fewer than were asked for."""
        return check_codes(bpe / "code")

    def bpe_differences(self) -> list[str]:
        """Return the differences of the BPE from the standard, given the same text."""
        return []


def _load(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _save(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _claim(out: Path, request: Mapping[str, Any]) -> None:
    """Write ``out/request.json``.

    Raises:
        ValueError: if ``out`` holds a stage of another request, or of no request.
    """
    note = out / "request.json"
    if not any((out / stage).exists() for stage in ("raw", "text", "bpe", "bin")):
        out.mkdir(parents=True, exist_ok=True)
        _save(note, request)
        return
    earlier = _load(note) if note.exists() else {}
    if earlier != request:
        keys = [key for key in {**earlier, **request} if earlier.get(key) != request.get(key)]
        raise ValueError(
            f"--output: `{out}` was not made for this request, but for `{note.name}` in it, with "
            f"another value of {', '.join(keys)}. Choose another directory with --output, or "
            "remove that one."
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


def build(recipe: Recipe, out: Path, allow_nonstandard: bool, say: Say) -> dict[str, Any]:
    """Make a corpus in ``out``, or go on where an earlier call was stopped.

    ``out/text`` has tokenised text, ``out/bpe`` the same in subword units and the merges,
    ``out/bin`` what fairseq reads and ``about.json``, which is returned.

    Args:
        recipe: which corpus, of what.
        out: directory.
        allow_nonstandard: take a text that differs from the standard.
        say: takes a line for the user.

    Raises:
        ValueError: if the text cannot be had or is not the standard, or ``out`` is for another
            request.
    """
    request = recipe.request()
    _claim(out, request)
    if (out / "bin").exists():
        say(f"`{out}` is finished already; nothing was done")
        return _load(out / "bin" / "about.json")

    def text(directory: Path) -> None:
        say("writing the tokenised text")
        tokeniser = recipe.write_text(directory, say)
        pairs = {split: count_pairs(directory, split, recipe.langs) for split in SPLITS}
        differences, acceptable = recipe.judge(directory, pairs)
        if not (acceptable or allow_nonstandard):
            reason = ""
            if tokeniser is not None and tokeniser.startswith("sacremoses"):
                reason = (
                    f" It was tokenised by {tokeniser}, because Perl, with its standard modules, "
                    "is missing: that is the likely reason. Install it (apt-get install perl) and "
                    "call again."
                )
            raise ValueError(
                f"This is not the standard {recipe.name}: {'; '.join(differences)}.{reason} With "
                "--allow-nonstandard it is prepared as it is, and marked as not standard."
            )
        for difference in differences:
            say(f"  not the standard: {difference}")
        note = {"pairs": pairs, "differences": differences, "tokeniser": tokeniser}
        _save(directory / "about.json", note)

    def bpe(directory: Path) -> None:
        say("applying BPE")
        recipe.write_bpe(out / "text", directory, say)

    def binary(directory: Path) -> None:
        say("running fairseq-preprocess")
        workers = ("--workers", str(recipe.jobs))
        binarise(out / "bpe", directory, recipe.langs, *recipe.options, *workers)
        note = _load(out / "text" / "about.json")
        differences = note["differences"] + recipe.bpe_differences()
        with (directory / f"dict.{recipe.langs[0]}.txt").open("rb") as file:
            types = sum(1 for _ in file) + _SPECIAL_TYPES
        about = {
            "corpus": recipe.name,
            "standard": not differences,
            "differences": differences,
            "pairs": note["pairs"],
            "tokeniser": note["tokeniser"],
            "merges": recipe.count_merges(out / "bpe"),
            "types": types,
            "request": request,
        }
        _save(directory / "about.json", about)
        if recipe.tokens is not None:
            write_pieces(directory, "subword_nmt", out / "bpe" / "code", **recipe.tokens)

    if recipe.raw:
        _stage(out / "raw", recipe.write_raw)
    _stage(out / "text", text)
    _stage(out / "bpe", bpe)
    _stage(out / "bin", binary)
    return _load(out / "bin" / "about.json")
