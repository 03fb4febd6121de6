"""Joint byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909) with subword-nmt."""

import io
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, redirect_stderr
from functools import cache, partial
from itertools import chain
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from rbn_fairseq.corpora.lines import SPLITS, Say, announced, read_lines, write_lines
from rbn_fairseq.corpora.parallel import map_chunks

__all__ = ["apply", "check_codes", "learn"]


def learn(text: Path, codes: Path, langs: Sequence[str], merges: int) -> None:
    """Learn merges on the training text, source then target, and write them.

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
def _load(codes: Path) -> BPE:
    with codes.open(encoding="utf-8", newline="\n") as file:
        return BPE(file)


def _cut(codes: Path, lines: Sequence[str]) -> list[str]:
    bpe = _load(codes)
    return [bpe.process_line(line) for line in lines]


def apply(
    text: Path, codes: Path, directory: Path, langs: Sequence[str], jobs: int, say: Say
) -> None:
    """Cut all files of ``text`` into pieces, and write them to ``directory``."""
    ignore = (signal.SIGINT, signal.SIG_IGN)  # the user's interrupt is for the parent
    with ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=ignore) as executor:
        for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
            cut = map_chunks(partial(_cut, codes), read_lines(text / name), executor, 2 * jobs)
            write_lines(directory / name, announced(cut, f"cutting {name}", say))
