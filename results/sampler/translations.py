"""Scores translations with the length penalty that is best on the validation set.

VALID and TEST are what `rbn generate --beam 5 --nbest 5 --lenpen 1` prints; TEXT has the
references, valid.en and test.en. fairseq's length penalty only ranks the hypotheses that a beam has
finished, so that one search serves all penalties: a hypothesis' score is the sum of its tokens' log
probabilities over its length to the power of the penalty. That with the best tokenised BLEU4 on the
validation set is taken. Prints JSON: BLEU4 of tokenised text, sacreBLEU and chrF2 of detokenised
text, and the ratio of lengths, with that penalty and with 1.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from rbn_fairseq.corpora.text import read_lines
from rbn_fairseq.scoring import detokenise

PENALTIES = [step / 10 for step in range(31)]
Sentence = list[tuple[str, float, int]]  # hypotheses: text, sum of log probabilities, tokens


def read(path: Path) -> list[Sentence]:
    """Return the hypotheses of each sentence, in the order of sentences."""
    texts: dict[int, list[str]] = {}
    scores: dict[int, list[list[float]]] = {}
    for line in read_lines(path):
        if match := re.match(r"([DP])-(\d+)\t(.*)", line):
            kind, number, rest = match[1], int(match[2]), match[3]
            if kind == "D":
                texts.setdefault(number, []).append(rest.partition("\t")[2])
            else:
                scores.setdefault(number, []).append([float(score) for score in rest.split()])
    return [
        [(text, sum(score), len(score)) for text, score in zip(texts[n], scores[n], strict=True)]
        for n in sorted(texts)
    ]


def references(text: Path, part: str) -> list[str]:
    """Return the references of a part, a line a sentence."""
    return list(read_lines(text / f"{part}.en"))


def best(sentences: list[Sentence], penalty: float) -> list[str]:
    """Return each sentence's best hypothesis."""
    return [max(ways, key=lambda way: way[1] / way[2] ** penalty)[0] for ways in sentences]


def tokenised(hypotheses: list[str], references: list[str]) -> Any:
    """Return sacreBLEU's score of text that is tokenised already."""
    return BLEU(tokenize="none", force=True).corpus_score(hypotheses, [references])


def score(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """Return the scores of a test set."""
    bleu = tokenised(hypotheses, references)
    plain, right = detokenise(hypotheses, "en"), detokenise(references, "en")
    return {
        "bleu4": bleu.score,
        "length_ratio": bleu.sys_len / bleu.ref_len,
        "sacrebleu": BLEU().corpus_score(plain, [right]).score,
        "chrf2": CHRF().corpus_score(plain, [right]).score,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("valid", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("text", type=Path)
    arguments = parser.parse_args()
    sentences, right = read(arguments.valid), references(arguments.text, "valid")
    by_penalty = {p: tokenised(best(sentences, p), right).score for p in PENALTIES}
    tuned = max(by_penalty, key=lambda p: by_penalty[p])
    sentences, right = read(arguments.test), references(arguments.text, "test")
    result: dict[str, Any] = {
        "lenpen": tuned,
        "valid_bleu4": by_penalty[tuned],
        "tuned": score(best(sentences, tuned), right),
        "lenpen_1": score(best(sentences, 1.0), right),
        "signatures": [
            str(BLEU(references=[right]).get_signature()),
            str(CHRF(references=[right]).get_signature()),
        ],
    }
    json.dump(result, sys.stdout, indent=1)
