"""BLEU against fairseq's own; the paired bootstrap against the test written out with numpy."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import sacrebleu

import runs
from rbn_fairseq.scoring import (
    bleu,
    detokenise,
    fetch_references,
    paired_bootstrap,
    read_generated,
    read_search,
    split_compounds,
)

GENERATED = """2026-01-01 | INFO | noise
S-1\tzwei Wörter
T-1\ttwo words
H-1\t-0.5\ttwo wor@@ ds
D-1\t-0.5\ttwo words
D-1\t-0.9\tthe second best
S-0\teins
T-0\tone
D-0\t-0.1\t
P-0\t-0.1 -0.2
"""


def test_order_and_best(tmp_path):
    path = tmp_path / "out"
    path.write_text(GENERATED)
    references, hypotheses = read_generated(path)
    assert references == ["one", "two words"]
    assert hypotheses == ["", "two words"]  # of several, the first is the best
    assert read_search(path) == ""


@pytest.mark.parametrize(
    "text, piece", [("two wor@@ ds", "wor@@"), ("▁two ▁words", "▁two"), ("a @@ b", None)]
)
def test_subword_units_are_warned_of(tmp_path, caplog, text, piece):
    path = tmp_path / "out"
    path.write_text(f"T-0\tone\nD-0\t-0.1\t{text}\n")
    read_generated(path)
    assert [record.args for record in caplog.records] == ([(path, piece)] if piece else [])


@pytest.mark.parametrize("missing", ["D-0", "D-1", "[A-Z]-0"])
def test_stopped_command(tmp_path, missing):
    path = tmp_path / "out"
    path.write_text(
        "\n".join(line for line in GENERATED.splitlines() if not re.match(missing, line))
    )
    with pytest.raises(ValueError, match=f"lacks .*{missing}.* stopped"):
        read_generated(path)


def test_data_without_a_target_side(tmp_path):
    path = tmp_path / "out"
    path.write_text(re.sub("T-.*\n", "", GENERATED))
    with pytest.raises(ValueError, match="lacks T-0.*Give --reference"):
        read_generated(path)
    assert read_generated(path, references=False)[1] == ["", "two words"]


def test_other_files(tmp_path):
    (tmp_path / "log").write_text("training\n")
    with pytest.raises(ValueError, match="holds no translations"):
        read_generated(tmp_path / "log")
    with pytest.raises(ValueError, match="none"):
        read_generated(tmp_path / "none")


def test_tokenised_bleu_is_that_of_fairseq(rbn_run, data_bin, tmp_path):
    search = ("--beam", 2, "--lenpen", 0.6, "--max-len-a", 1)
    out = runs.evaluate("generate", data_bin, rbn_run / "checkpoint_last.pt", *search)
    (tmp_path / "out").write_text(out)
    told = "beam 2, lenpen 0.6, max_len_a 1, max_len_b 200, min_len 1, temperature 1"
    assert read_search(tmp_path / "out") == told
    references, hypotheses = read_generated(tmp_path / "out")
    assert len(hypotheses) == 61
    score = bleu(hypotheses, references, "none")
    theirs = float(re.search(r"BLEU4 = ([0-9.]+)", out)[1])
    assert theirs > 0.1
    assert score.bleu == pytest.approx(theirs, abs=0.006)  # they print two digits
    assert "tok:none" in score.signature


def test_numbers_differ():
    with pytest.raises(ValueError, match="1 translations .* 2 references"):
        bleu(["a"], ["a", "b"])


def test_tokeniser_of_the_language():
    assert "tok:13a" in bleu(["a b"], ["a b"], lang="en").signature
    for lang in ("zh", "zh_CN", "zh-Hans", "cmn", "zho"):
        assert "tok:zh" in bleu(["我们"], ["我们"], lang=lang).signature
    assert "tok:13a" in bleu(["a b"], ["a b"], lang="en_XX").signature


def test_detokenise():
    assert detokenise(["he said , &quot; no &quot; ."], "en") == ['he said, "no".']


COMPOUNDS = ["a well-known state-of-the-art x-y-z", "- a - -b c- 1-2 über-all ##AT##", ""]


def test_split_compounds():
    if shutil.which("perl") is None:
        pytest.skip("the oracle is perl")
    # fairseq's scripts/compound_split_bleu.sh does this to both sides.
    program = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    text = "\n".join(COMPOUNDS) + "\n"
    done = subprocess.run(
        ["perl", "-CSD", "-ple", program], input=text, capture_output=True, text=True, check=True
    )
    assert split_compounds(COMPOUNDS) == done.stdout.split("\n")[:-1]


def test_references_of_a_test_set(tmp_path, monkeypatch):
    path = tmp_path / "ref"
    path.write_text("eins\u2028zwei\ndrei\n")  # a line separator that is none here
    monkeypatch.setattr(sacrebleu, "get_reference_files", lambda *names: [str(path)])
    assert fetch_references("wmt14/full", "en-de") == ["eins\u2028zwei", "drei"]
    signature = bleu(["a"], ["a"], lang="de", test_set="wmt14/full").signature
    assert "test:wmt14/full" in signature and "tok:13a" in signature


def test_test_sets_that_cannot_be_had(monkeypatch):
    for names in (("wmt14/whole", "en-de"), ("wmt14/full", "en-xx")):
        with pytest.raises(ValueError, match="sacreBLEU has no such test set"):
            fetch_references(*names)

    def no_network(*names):
        raise OSError("no route")

    monkeypatch.setattr(sacrebleu, "get_reference_files", no_network)
    with pytest.raises(ValueError, match="no route.*--raw-reference"):
        fetch_references("wmt14/full", "en-de")

    monkeypatch.setattr(sacrebleu, "get_reference_files", lambda *names: ["one", "two"])
    with pytest.raises(ValueError, match="2 references a sentence.*--raw-reference"):
        fetch_references("wmt20/tworefs", "en-de")


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
    outcome = paired_bootstrap(REFERENCES, damaged(0.9), REFERENCES, "none", samples=200)
    assert outcome.samples == 200 and outcome.bleu < 80
    assert outcome.p == pytest.approx(1 / 201)


def test_the_same_translations_do_not_differ():
    same = damaged(0.5)
    assert paired_bootstrap(same, same, REFERENCES, "none", samples=200).p == 1.0


def test_is_the_bootstrap_written_out():
    own, other = damaged(0.3), damaged(0.4, seed=2)
    outcome = paired_bootstrap(own, other, REFERENCES, "none", samples=400)

    def score(texts, chosen):
        lines = [[REFERENCES[index] for index in chosen]]
        kept = [texts[index] for index in chosen]
        return sacrebleu.corpus_bleu(kept, lines, tokenize="none", force=True).score

    everything = range(len(REFERENCES))
    assert outcome.bleu == pytest.approx(score(other, everything))
    real = abs(score(own, everything) - score(other, everything))
    draws = np.random.default_rng(7).integers(60, size=(400, 60))
    differences = np.array([score(own, draw) - score(other, draw) for draw in draws])
    lengths = np.abs(differences)
    expected = ((lengths - lengths.mean() > real).sum() + 1) / 401
    # Two samples of 400: the standard error of each p is at most 0.025.
    assert 0.02 < expected < 0.98
    assert outcome.p == pytest.approx(expected, abs=0.1)


def test_numbers_of_sentences_must_agree():
    with pytest.raises(ValueError, match="59 translations, 60 others and 60 references"):
        paired_bootstrap(REFERENCES[1:], REFERENCES, REFERENCES)
