"""Paired bootstrap: outcomes that are certain, and the test written out with numpy."""

import numpy as np
import pytest
import sacrebleu

from rbn_fairseq.significance import paired_bootstrap

WORDS = "a b c d e f g h i j k l".split()
CHOICE = np.random.default_rng(5).choice
REFERENCES = [" ".join(CHOICE(WORDS, size=9)) for _ in range(60)]


def damaged(often, seed=1):
    """The references, with the last words of a share of them replaced."""
    hit = np.random.default_rng(seed).random(len(REFERENCES)) < often
    return [
        " ".join([*line.split()[:5], *"x x x x".split()]) if bad else line
        for line, bad in zip(REFERENCES, hit, strict=True)
    ]


def test_perfect_against_bad_is_as_certain_as_samples_allow():
    found = paired_bootstrap(REFERENCES, damaged(0.9), REFERENCES, "none", samples=200)
    assert found.samples == 200 and found.bleu < 80
    assert found.p == pytest.approx(1 / 201)


def test_the_same_translations_do_not_differ():
    same = damaged(0.5)
    assert paired_bootstrap(same, same, REFERENCES, "none", samples=200).p == 1.0


def test_is_the_bootstrap_written_out():
    own, other = damaged(0.3), damaged(0.4, seed=2)
    found = paired_bootstrap(own, other, REFERENCES, "none", samples=400, against="x")

    def score(texts, chosen):
        lines = [[REFERENCES[index] for index in chosen]]
        kept = [texts[index] for index in chosen]
        return sacrebleu.corpus_bleu(kept, lines, tokenize="none", force=True).score

    everything = range(len(REFERENCES))
    assert found.bleu == pytest.approx(score(other, everything))
    assert found.against == "x"
    real = abs(score(own, everything) - score(other, everything))
    draws = np.random.default_rng(7).integers(60, size=(400, 60))
    differences = np.array([score(own, draw) - score(other, draw) for draw in draws])
    lengths = np.abs(differences)
    expected = ((lengths - lengths.mean() > real).sum() + 1) / 401
    # Two samples of 400: the standard error of each p is at most 0.025.
    assert 0.02 < expected < 0.98
    assert found.p == pytest.approx(expected, abs=0.1)


def test_numbers_of_sentences_must_agree():
    with pytest.raises(ValueError, match="59 translations, 60 others and 60 references"):
        paired_bootstrap(REFERENCES[1:], REFERENCES, REFERENCES)
