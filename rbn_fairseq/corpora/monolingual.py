"""Texts for language modelling, of one sentence a line, tokenised before."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbn_fairseq.corpora.build import make_stages, preprocess, refuse_nonstandard, save_note
from rbn_fairseq.corpora.text import SPLITS, Say, read_lines, sha256

__all__ = ["TEXTS", "Text", "build_text"]


@dataclass(frozen=True)
class Text:
    """A corpus of the paper.

    Attributes:
        name: in words.
        files: of its parts.
        lines: the standard's number of each part.
    """

    name: str
    files: Mapping[str, str]
    lines: Mapping[str, int]


TEXTS = {
    "ptb": Text(
        "Penn Treebank",
        {split: f"ptb.{split}.txt" for split in SPLITS},
        {"train": 42_068, "valid": 3_370, "test": 3_761},
    ),
    "wikitext103": Text(
        "WikiText-103",
        {split: f"wiki.{split}.tokens" for split in SPLITS},
        {"train": 1_801_350, "valid": 3_760, "test": 4_358},
    ),
}


def build_text(
    text: Text, directory: Path, out: Path, jobs: int, allow_nonstandard: bool, say: Say
) -> dict[str, Any]:
    """Make ``out/bin``, which fairseq reads, of the files of a text; return its ``about.json``.

    Args:
        text: which one.
        directory: where its files are.
        out: directory to write to.
        jobs: processes at a time.
        allow_nonstandard: take a text that differs from the standard.
        say: takes a line for the user.

    Raises:
        ValueError: if a file is missing or no UTF-8, the text is not the standard, or ``out`` is
            for another request.
    """
    paths = {split: directory / file for split, file in text.files.items()}
    missing = [path for path in paths.values() if not path.is_file()]
    if missing:
        raise ValueError(
            f"--text: there is no `{missing[0]}`. {text.name} is {', '.join(text.files.values())}."
        )
    request = {"corpus": text.name, "files": {split: sha256(paths[split]) for split in SPLITS}}

    def binary(destination: Path) -> None:
        lines = {split: sum(1 for _ in read_lines(path)) for split, path in paths.items()}
        differences = [
            f"{text.files[split]} has {number:,} lines, the standard has {text.lines[split]:,}"
            for split, number in lines.items()
            if number != text.lines[split]
        ]
        refuse_nonstandard(text.name, differences, allow_nonstandard)
        say("running fairseq-preprocess")
        prefixes = [f"--{split}pref={path}" for split, path in paths.items()]
        preprocess("--only-source", *prefixes, "--destdir", str(destination), f"--workers={jobs}")
        about = {
            "corpus": text.name,
            "standard": not differences,
            "differences": differences,
            "lines": lines,
            "request": request,
        }
        save_note(destination / "about.json", about)

    return make_stages(out, request, {"bin": binary}, say)
