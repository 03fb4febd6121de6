"""Which training pairs are kept, and lower case, as Moses' scripts have them."""

import re
from typing import Optional

from rbn_fairseq.corpora.lines import Pair

__all__ = ["clean_pair", "lower_case"]

# What Perl calls white space; Python also counts four control characters.
_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_LONGEST_WORD = 1_000  # characters


def _tidy(line: str) -> str:
    # The script keeps "|" where the first line has one: text with factors. Ours never has any,
    # because the tokeniser escapes it.
    return _SPACE.sub(" ", line.replace("|", "")).strip(" ")


def clean_pair(source: str, target: str, longest: int, ratio: float) -> Optional[Pair]:
    """Tidy a tokenised pair; ``None`` = not to be trained on.

    Follows ``scripts/training/clean-corpus-n.perl`` of Moses: both sides must have 1 to
    ``longest`` tokens, neither more than ``ratio`` times as many as the other, and no token of
    more than 1,000 characters.
    """
    source, target = _tidy(source), _tidy(target)
    if not source or not target:
        return None
    sides = source.split(" "), target.split(" ")
    shorter, longer = sorted(map(len, sides))
    if longer > longest or longer / shorter > ratio:
        return None
    if any(len(word) > _LONGEST_WORD for side in sides for word in side):
        return None
    return source, target


def lower_case(line: str) -> str:
    """Return ``line`` in lower case as Perl has it, which knows no final sigma."""
    return line.replace("Σ", "σ").lower()
