"""BLEU of fairseq-generate's output, against fairseq's own BLEU."""

import re
import shutil
import subprocess

import pytest
import sacrebleu

import runs
from rbn_fairseq.scoring import bleu, detokenise, fetch_references, read_generated, split_compounds

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
    first, second = read_generated(path)
    assert (first.index, first.source, first.reference, first.hypothesis) == (0, "eins", "one", "")
    assert second.hypothesis == "two words"  # of several, the first is the best


@pytest.mark.parametrize("missing, what", [("D-0", "hypothesis"), ("T-1", "reference")])
def test_stopped_command(tmp_path, missing, what):
    path = tmp_path / "out"
    path.write_text(
        "\n".join(line for line in GENERATED.splitlines() if not line.startswith(missing))
    )
    with pytest.raises(ValueError, match=f"sentence {missing[2]} has no {what}"):
        read_generated(path)


def test_other_files(tmp_path):
    (tmp_path / "log").write_text("training\n")
    with pytest.raises(ValueError, match="holds no translations"):
        read_generated(tmp_path / "log")
    with pytest.raises(ValueError, match="There is no output"):
        read_generated(tmp_path / "none")


def test_tokenised_bleu_is_that_of_fairseq(rbn_run, data_bin, tmp_path):
    out = runs.call(
        "generate", data_bin, "--user-dir", runs.USER_DIR, "--task", "translation_rbn",
        "--path", rbn_run / "checkpoint_last.pt", "--cpu", "--num-workers", 0, "--beam", 2,
    )  # fmt: skip
    (tmp_path / "out").write_text(out)
    translations = read_generated(tmp_path / "out")
    assert len(translations) == 61
    score = bleu([t.hypothesis for t in translations], [t.reference for t in translations], "none")
    theirs = float(re.search(r"BLEU4 = ([0-9.]+)", out)[1])
    assert theirs > 0.1
    assert score.bleu == pytest.approx(theirs, abs=0.006)  # they print two digits
    assert "tok:none" in score.signature


def test_numbers_differ():
    with pytest.raises(ValueError, match="1 translations .* 2 references"):
        bleu(["a"], ["a", "b"])


def test_tokeniser_of_the_language():
    assert "tok:13a" in bleu(["a b"], ["a b"], lang="en").signature
    assert "tok:zh" in bleu(["我们"], ["我们"], lang="zh").signature


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
