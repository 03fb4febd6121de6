"""Texts for language modelling, of one sentence a line, tokenised before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rbn_fairseq.corpora.build import Corpus, count_differences, preprocess
from rbn_fairseq.corpora.text import SPLITS, check_text, sha256

__all__ = ["STANDARDS", "Text"]


#: The corpora: their names, those of their files, with a place for that of the part, and the
#: standard's number of lines of each part.
STANDARDS: dict[str, dict[str, Any]] = {
    "ptb": {  # by Mikolov
        "name": "Penn Treebank",
        "file": "ptb.{}.txt",
        "standard": {"train": 42_068, "valid": 3_370, "test": 3_761},
    },
    "wikitext103": {
        "name": "WikiText-103",
        "file": "wiki.{}.tokens",
        "standard": {"train": 1_801_350, "valid": 3_760, "test": 4_358},
    },
}


@dataclass(frozen=True)
class Text(Corpus):
    """A text in three files, which are used where they are.

    Attributes:
        directory: where they are.
        name, file, standard: see :data:`STANDARDS`.
    """

    directory: Path
    file: str
    name: str = "text"
    standard: Mapping[str, int] = field(default_factory=dict)

    @property
    def _files(self) -> dict[str, Path]:
        return {split: self.directory / self.file.format(split) for split in SPLITS}

    def request(self) -> dict[str, Any]:
        """Return the hashes of the files."""
        missing = [path for path in self._files.values() if not path.is_file()]
        if missing:
            names = ", ".join(path.name for path in self._files.values())
            raise ValueError(f"--text: there is no `{missing[0]}`. {self.name} is {names}.")
        hashes = {split: sha256(path) for split, path in self._files.items()}
        return {"corpus": self.name, "files": hashes}

    def write_text(self, directory: Path) -> dict[str, Any]:
        """Write nothing; count lines."""
        lines = {split: check_text(path) for split, path in self._files.items()}
        return {"lines": lines, "differences": count_differences("lines", lines, self.standard)}

    def write_binary(self, out: Path, directory: Path, note: dict[str, Any]) -> None:
        """Write binary data of one language."""
        prefixes = [f"--{split}pref={path}" for split, path in self._files.items()]
        where = ("--destdir", str(directory), f"--workers={self.jobs}")
        preprocess("--only-source", *prefixes, *where)
