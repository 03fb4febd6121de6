"""fairseq-preprocess with a joined dictionary."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rbn_fairseq.corpora.lines import SPLITS

__all__ = ["binarise"]


def binarise(text: Path, out: Path, langs: Sequence[str], *options: str) -> None:
    """Make ``text/{train,valid,test}.{source,target}`` what fairseq reads, in ``out``.

    Args:
        text: directory of pieces.
        out: is made.
        langs: source and target.
        options: further ones of fairseq-preprocess.

    Raises:
        ValueError: if fairseq-preprocess fails; the message ends with the last it said.
    """
    prefixes = [f"--{split}pref={text / split}" for split in SPLITS]
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--joined-dictionary", *prefixes]
    command += ["-s", langs[0], "-t", langs[1], "--destdir", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise ValueError("fairseq-preprocess failed: " + said.split("\n")[-1][-500:])
