"""A generated parallel corpus: numbers and dates spelt out in German and English."""

import random
from pathlib import Path

from num2words import num2words

_MONTHS = {
    "januar": "january", "februar": "february", "märz": "march", "april": "april",
    "mai": "may", "juni": "june", "juli": "july", "august": "august",
    "september": "september", "oktober": "october", "november": "november",
    "dezember": "december",
}  # fmt: skip


def _pair(rng: random.Random) -> tuple[str, str]:
    """One phrase: short ones (a day and a month) and long ones (several numbers)."""
    phrases = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        number = rng.randrange(1, 100)
        month = rng.choice(list(_MONTHS))
        german, english = num2words(number, lang="de"), num2words(number, lang="en")
        phrases.append((f"{german} im {month}", f"{english.replace('-', ' ')} in {_MONTHS[month]}"))
    german, english = zip(*phrases, strict=True)
    return " und ".join(german), " and ".join(english)


def write_corpus(directory: Path, sizes: dict[str, int], seed: int = 1) -> None:
    """Write ``{split}.de`` and ``{split}.en`` with distinct pairs."""
    rng = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    seen = set()
    while len(pairs) < sum(sizes.values()):
        pair = _pair(rng)
        if pair not in seen:
            seen.add(pair)
            pairs.append(pair)
    directory.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        part, pairs = pairs[:size], pairs[size:]
        for side, lang in enumerate(("de", "en")):
            lines = "".join(pair[side] + "\n" for pair in part)
            (directory / f"{split}.{lang}").write_text(lines, encoding="utf-8")


def write_varied(directory: Path, words: dict[str, range], seed: int = 1) -> None:
    """Write ``{split}.de`` and ``{split}.en``, 8 sentences of each of these numbers of words.

    Sentences of one split are in no order of length.
    """
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    for split, numbers in words.items():
        lengths = [number for number in numbers for _ in range(8)]
        rng.shuffle(lengths)
        german = [" ".join(rng.choices("abcdefgh", k=length)) for length in lengths]
        (directory / f"{split}.de").write_text("".join(line + "\n" for line in german))
        (directory / f"{split}.en").write_text("".join(line.upper() + "\n" for line in german))
