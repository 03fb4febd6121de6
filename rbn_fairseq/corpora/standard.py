"""The corpus that others train on, and how a text differs from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rbn_fairseq.corpora.lines import sha256

__all__ = ["Standard"]


@dataclass(frozen=True)
class Standard:
    """What is known about the standard text.

    Attributes:
        pairs: number of pairs of each part.
        sha256: hashes of files of the tokenised text, by name.
    """

    pairs: Mapping[str, int]
    sha256: Mapping[str, str] = field(default_factory=dict)

    def differences(self, text: Path, pairs: Mapping[str, int]) -> list[str]:
        """Compare a directory of text that has ``pairs``; one sentence a difference."""
        found = [
            f"{split} has {pairs[split]:,} pairs, the standard has {expected:,}"
            for split, expected in self.pairs.items()
            if pairs[split] != expected
        ]
        for name, expected in self.sha256.items():
            hashed = sha256(text / name)
            if hashed != expected:
                found.append(
                    f"{name} differs from the standard file (SHA-256 {hashed[:12]}…, not "
                    f"{expected[:12]}…)"
                )
        return found
