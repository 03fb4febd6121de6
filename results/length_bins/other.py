"""Validation sets of lengths and of texts that a training on IWSLT14 has not seen.

TEXT holds valid.de and valid.en of IWSLT14, tokenised and lower-cased; TATOEBA and NEWS are
prefixes of raw parallel text. Writes OUT/NAME/valid.{de,en}: sentences of IWSLT14 joined by fours
and by eights, its longest 1 %, and samples of the two others, tokenised and lower-cased likewise.
"""

import argparse
import random
from pathlib import Path

from sacremoses import MosesTokenizer

LANGS = ("de", "en")
Pairs = list[tuple[str, ...]]


def read(prefix: str) -> Pairs:
    """Return the lines of both languages, pair by pair."""
    sides = (Path(f"{prefix}.{lang}").read_text().splitlines() for lang in LANGS)
    return list(zip(*sides, strict=True))


def joined(pairs: Pairs, number: int) -> Pairs:
    """Join every so many pairs that follow one another to one; what is left over is left out."""
    groups = (pairs[at : at + number] for at in range(0, len(pairs) - number + 1, number))
    return [tuple(" ".join(pair[side] for pair in group) for side in (0, 1)) for group in groups]


def sample(pairs: Pairs, number: int) -> Pairs:
    """Draw pairs without replacement."""
    return random.Random(1).sample(pairs, number)


def tokenised(pairs: Pairs) -> Pairs:
    """Return Moses tokens in lower case."""
    moses = [MosesTokenizer(lang) for lang in LANGS]
    return [
        tuple(moses[side].tokenize(pair[side], return_str=True).lower() for side in (0, 1))
        for pair in pairs
    ]


parser = argparse.ArgumentParser(description=__doc__)
for name in ("text", "tatoeba", "news", "out"):
    parser.add_argument(name)
text, tatoeba, news, out = vars(parser.parse_args()).values()
own = read(f"{text}/valid")
longest = sorted(own, key=lambda pair: len(pair[0].split()), reverse=True)
for name, pairs in {
    "joined4": sample(joined(own, 4), 900),
    "joined8": sample(joined(own, 8), 450),
    "longest": longest[: round(len(own) / 100)],
    "tatoeba": tokenised(sample(read(tatoeba), 3000)),
    "news": tokenised(sample(read(news), 1500)),
}.items():
    directory = Path(out, name)
    directory.mkdir(parents=True, exist_ok=True)
    for side, lang in enumerate(LANGS):
        (directory / f"valid.{lang}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    print(name, len(pairs))
