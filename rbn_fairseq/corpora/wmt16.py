"""WMT16 English-German, from Google's archive, which has BPE applied."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rbn_fairseq.corpora.build import PairCorpus, hash_files
from rbn_fairseq.corpora.text import extract, read_lines, write_lines

__all__ = ["WMT16"]

_TYPES = "32768"
_MEMBERS = {
    "train": "train.tok.clean.bpe.32000",
    "valid": "newstest2013.tok.bpe.32000",
    "test": "newstest2014.tok.bpe.32000",
}


class WMT16(PairCorpus):
    """Made of ``wmt16_en_de.tar.gz``: tokenised, cleaned, in subword units."""

    name = "WMT16 En-De"
    langs = ("en", "de")
    standard = {"train": 4_500_966, "valid": 3_000, "test": 3_003}
    standard_merges = 32_000
    options = ("--nwordssrc", _TYPES, "--nwordstgt", _TYPES)

    def request(self) -> dict[str, Any]:
        """Return the hash of the archive."""
        return {"corpus": self.name, **hash_files({"archive": self.path})}

    def write_tokens(self, directory: Path) -> None:
        """Unpack, and join subword units to words."""
        with TemporaryDirectory(dir=directory) as pieces:
            self.write_bpe(directory, Path(pieces))
            for path in Path(pieces).iterdir():
                words = (line.replace("@@ ", "") for line in read_lines(path))
                write_lines(directory / path.name, words)

    def write_bpe(self, text: Path, directory: Path) -> None:
        """Unpack the subword units as they are; the archive has no merges."""
        members = {
            f"{split}.{lang}": f"{stem}.{lang}"
            for split, stem in _MEMBERS.items()
            for lang in self.langs
        }
        extract(self.path, members.values(), directory)
        for name, member in members.items():
            (directory / member).rename(directory / name)
