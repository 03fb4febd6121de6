"""Another corpus: Tatoeba's German-English pairs, tokenised, lower-cased and split.

PAIRS has a pair a line, English, tab, German. Writes TEXT/{train,valid,test}.{de,en}. No sentence
of one part is in another, in either language, whatever its case and punctuation: pairs that share
one, directly or by others, stay together.
"""

import argparse
import random
from pathlib import Path
from unicodedata import normalize

import pandas as pd
from sacremoses import MosesTokenizer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

HELD_OUT = 4000  # pairs, of validation and of test


def letters(sentence: str) -> str:
    """Return what is compared: letters and digits, without case."""
    return "".join(filter(str.isalnum, sentence.casefold()))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("pairs", type=Path)
parser.add_argument("text", type=Path)
pairs, text = vars(parser.parse_args()).values()
lines = normalize("NFC", pairs.read_text(encoding="utf-8")).splitlines()
data = pd.DataFrame((line.split("\t")[:2] for line in lines), columns=["en", "de"])
data = data.drop_duplicates(ignore_index=True)

english, names = pd.factorize(data["en"].map(letters))
german = pd.factorize(data["de"].map(letters))[0] + len(names)
nodes = german.max() + 1
_, group = connected_components(coo_array(([1] * len(data), (english, german)), (nodes, nodes)))
groups = list(data.groupby(group[english]).indices.values())
random.Random(1).shuffle(groups)
parts: dict[str, list[int]] = {"valid": [], "test": [], "train": []}
for rows in groups:
    open_to = [part for part in ("valid", "test") if len(parts[part]) + len(rows) <= HELD_OUT]
    parts[(open_to or ["train"])[0]].extend(rows)

text.mkdir(parents=True, exist_ok=True)
random.Random(1).shuffle(parts["train"])
for language in ("de", "en"):
    moses = MosesTokenizer(language)
    sentences = [
        moses.tokenize(sentence, return_str=True, escape=False).lower()
        for sentence in data[language]
    ]
    for part, rows in parts.items():
        out = "".join(f"{sentences[row]}\n" for row in rows)
        (text / f"{part}.{language}").write_text(out, encoding="utf-8")
print({part: len(rows) for part, rows in parts.items()}, "pairs")
