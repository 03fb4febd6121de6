"""A corpus in stages, each whole or absent: text, pieces (BPE), binary data."""

import io
import json
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict, dataclass, field
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
    check_pairs,
    map_chunks,
    read_lines,
    sha256,
    write_lines,
)
from rbn_fairseq.writing import write_whole

__all__ = [
    "Recipe",
    "Standard",
    "Tokenised",
    "binarise",
    "build",
    "check_codes",
    "cut_pieces",
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
        """Compare a directory of text that has ``pairs``; one sentence a difference."""
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


def check_codes(codes: Path) -> int:
    """Return how many merges a file of codes has.

    Raises:
        ValueError: if it is not one; subword-nmt would end the process.
    """
    if not codes.is_file():
        raise ValueError(f"--bpe-codes: there is no file `{codes}`.")
    merges = list(read_lines(codes))
    header = 0
    if merges and merges[0].startswith("#version:"):
        if merges[0].split() != ["#version:", "0.2"] and merges[0].split() != ["#version:", "0.1"]:
            raise ValueError(f"--bpe-codes: `{codes}` is of a version not known, {merges[0]!r}.")
        header = 1
    for number, merge in enumerate(merges[header:], header + 1):
        if len(merge.strip("\r\n ").split(" ")) != 2:
            raise ValueError(
                f"--bpe-codes: line {number} of `{codes}` is not two pieces and a space between: "
                f"{merge[:50]!r}. It must be what subword-nmt learn-bpe wrote."
            )
    if len(merges) == header:
        raise ValueError(f"--bpe-codes: `{codes}` holds no merges.")
    return len(merges) - header


@cache  # in the processes, each of which serves one file of codes
def _read_codes(codes: Path) -> BPE:
    with codes.open(encoding="utf-8", newline="\n") as file:
        return BPE(file)


def _cut(codes: Path, lines: Sequence[str]) -> list[str]:
    bpe = _read_codes(codes)
    return [bpe.process_line(line) for line in lines]


def cut_pieces(
    text: Path, codes: Path, directory: Path, langs: Sequence[str], jobs: int, say: Say
) -> None:
    """Cut all files of ``text`` into pieces, and write them to ``directory``."""
    ignore = (signal.SIGINT, signal.SIG_IGN)  # the user's interrupt is for the parent
    with ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=ignore) as executor:
        for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
            cut = map_chunks(partial(_cut, codes), read_lines(text / name), executor, 2 * jobs)
            write_lines(directory / name, announced(cut, f"cutting {name}", say))


def binarise(text: Path, out: Path, langs: Sequence[str], *options: str) -> None:
    """Run fairseq-preprocess on ``text/{train,valid,test}.{source,target}``, one dictionary.

    Args:
        text: directory of pieces.
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


@dataclass(frozen=True)
class Tokenised:
    """Record of a text's tokenisation.

    Attributes:
        tokeniser: with its version; ``None`` = the text came tokenised.
        perl: whether it was Moses' own script; ``None`` = no tokeniser ran.
        differing: validation and test lines, of both languages, that sacremoses tokenises
            otherwise; ``None`` = the two did not both run.
    """

    tokeniser: Optional[str] = None
    perl: Optional[bool] = None
    differing: Optional[int] = None


class Recipe(ABC):
    """The steps that make one corpus, and its standard.

    Attributes:
        name: of the corpus.
        langs: source and target.
        options: of fairseq-preprocess, for this corpus.
        raw: whether raw text is kept, in a stage of its own.
    """

    name: ClassVar[str]
    langs: ClassVar[tuple[str, str]]
    options: ClassVar[tuple[str, ...]] = ()
    raw: ClassVar[bool] = False
    jobs: int

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """Return all that the result depends on, for JSON: two that are equal make the same."""

    def write_raw(self, directory: Path) -> None:
        """Write the raw text that is kept."""
        raise NotImplementedError

    @abstractmethod
    def write_text(self, directory: Path, say: Say) -> Tokenised:
        """Write tokenised text without BPE."""

    @abstractmethod
    def judge(self, text: Path, pairs: Mapping[str, int]) -> tuple[list[str], bool]:
        """Tell how the text differs from the standard, and whether that is in order."""

    @abstractmethod
    def write_bpe(self, text: Path, directory: Path, say: Say) -> None:
        """Write the text in pieces, and the code."""

    def count_merges(self, pieces: Path) -> int:
        """Count the merges of the BPE, which may be fewer than were asked for."""
        return check_codes(pieces / "code")

    def bpe_differences(self) -> list[str]:
        """Tell how the pieces differ from the standard, given the same text."""
        return []


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _save(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _claim(out: Path, request: Mapping[str, Any]) -> None:
    """Note in ``out`` what it is for, unless something else is there."""
    note = out / "request.json"
    begun = any((out / stage).exists() for stage in ("raw", "text", "bpe", "bin"))
    if not begun:  # what an earlier call was refused, a wrong archive say, binds nobody
        out.mkdir(parents=True, exist_ok=True)
        _save(note, request)
        return
    way_out = "Choose another directory with --output, or remove that one."
    if not note.exists():
        raise ValueError(
            f"--output: `{out}` holds something that is not from this command. {way_out}"
        )
    before = _load(note)
    if before != request:
        keys = [key for key in {**before, **request} if before.get(key) != request.get(key)]
        parts = (
            f"{key} was {_short(before.get(key))}, now {_short(request.get(key))}" for key in keys
        )
        raise ValueError(
            f"--output: `{out}` was made for another request: {'; '.join(parts)}. {way_out}"
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + "…"


def _stage(directory: Path, make: Callable[[Path], None]) -> None:
    """Make a directory, unless it is there: under another name until it is whole."""
    if directory.exists():
        return
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    make(unfinished)
    unfinished.rename(directory)


def _refusal(recipe: Recipe, differences: Sequence[str], tokenised: Tokenised) -> str:
    reason = ""
    if tokenised.perl is False:
        reason = (
            f" It was tokenised by {tokenised.tokeniser}, because Perl, with its standard modules, "
            "is missing: that is the likely reason. Install it (apt-get install perl) and call "
            "again."
        )
    return (
        f"This is not the standard {recipe.name}: {'; '.join(differences)}.{reason} With "
        "--allow-nonstandard it is prepared as it is, and marked as not standard."
    )


def build(recipe: Recipe, out: Path, allow_nonstandard: bool, say: Say) -> dict[str, Any]:
    """Make a corpus in ``out``, or go on where an earlier call was stopped.

    ``out/text`` has tokenised text, ``out/bpe`` the pieces and the code, ``out/bin`` what fairseq
    reads and ``about.json``, which is returned.

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
        return dict(_load(out / "bin" / "about.json"))

    def text(directory: Path) -> None:
        say("making the text")
        tokenised = recipe.write_text(directory, say)
        pairs = check_pairs(directory, recipe.langs)
        differences, in_order = recipe.judge(directory, pairs)
        if not (in_order or allow_nonstandard):
            raise ValueError(_refusal(recipe, differences, tokenised))
        for difference in differences:
            say(f"  not the standard: {difference}")
        note = {"pairs": pairs, "differences": differences, **asdict(tokenised)}
        _save(directory / "about.json", note)

    def pieces(directory: Path) -> None:
        say("cutting it into pieces")
        recipe.write_bpe(out / "text", directory, say)

    def binary(directory: Path) -> None:
        say("making it binary")
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
            "tokenised_differently": note["differing"],
            "merges": recipe.count_merges(out / "bpe"),
            "types": types,
            "request": request,
        }
        _save(directory / "about.json", about)

    if recipe.raw:
        _stage(out / "raw", recipe.write_raw)
    _stage(out / "text", text)
    _stage(out / "bpe", pieces)
    _stage(out / "bin", binary)
    return dict(_load(out / "bin" / "about.json"))
