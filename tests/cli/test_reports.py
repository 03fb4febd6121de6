"""`rbn score`, `rbn report` and the refusals of `rbn quickstart`."""

import csv
import json

import pytest

from command import completed, rbn, user_error

LINES = """S-0\tein haus .
T-0\ta house , i &apos;d say .
D-0\t-0.1\ta house , i &apos;d say .
S-1\tzwei
T-1\ttwo three four five six
D-1\t-0.1\ttwo three four five
"""


@pytest.fixture
def generated(tmp_path):
    path = tmp_path / "generated.txt"
    path.write_text(LINES)
    return path


def test_score(generated, tmp_path):
    result = completed("score", generated, "--lang", "en", "--json", tmp_path / "score.json")
    scores = json.loads((tmp_path / "score.json").read_text())
    assert "tok:none" in scores["tokenised"]["signature"]
    assert "tok:13a" in scores["sacrebleu"]["signature"]
    for kind, score in scores.items():
        assert f"{kind:14} BLEU {score['bleu']:.2f}" in result.output
        assert score["brevity_penalty"] < 1  # one word is missing
        assert score["sentences"] == LINES.count("T-")
    settings = {"_name": None, "common": {}, "generation": {"beam": 4, "lenpen": 0.6}}
    generated.write_text(f"INFO | {settings}\n{LINES}")
    output = completed("score", generated, "--lang", "en").output
    assert "translated with beam 4, lenpen 0.6" in output


def test_score_against_other_references(generated, tmp_path):
    reference = tmp_path / "reference"
    reference.write_text("a house , i &apos;d say .\ntwo three four five\n")
    assert "BLEU 100.00" in rbn("score", generated, "--lang", "en", "--reference", reference).output


def test_score_with_raw_references(generated, tmp_path):
    raw = tmp_path / "raw"
    raw.write_text("a house, I'd say.\ntwo three four five\n")
    scores = tmp_path / "score.json"
    options = ("--lang", "en", "--raw-reference", raw, "--json", scores, "--compound-split")
    completed("score", generated, *options)
    read = json.loads(scores.read_text())
    assert list(read) == ["tokenised", "compound_split", "sacrebleu"]
    # Only `I'd` differs in case; the tokenised references lack a word.
    assert 50 < read["sacrebleu"]["bleu"] < 100
    assert read["compound_split"]["bleu"] == read["tokenised"]["bleu"]  # no hyphens


def test_score_refusals(capsys, generated, tmp_path):
    missing_file = str(tmp_path / "none")
    assert missing_file in user_error(capsys, "score", missing_file, "--lang", "en")
    missing = ("--reference", tmp_path / "none")
    line = user_error(capsys, "score", generated, "--lang", "en", *missing)
    assert "There is no file" in line and str(tmp_path / "none") in line
    for options, message in (
        (("--test-set", "wmt14/full"), "go together"),
        (
            ("--test-set", "wmt14/full", "--language-pair", "en-de", "--raw-reference", generated),
            "are two references",
        ),
        (("--raw-reference", generated), "cannot be scored against"),
    ):
        assert message in user_error(capsys, "score", generated, "--lang", "en", *options)


def write_log(directory, loss):
    directory.mkdir()
    values = {"valid_loss": loss, "valid_nll_loss": loss, "valid_num_updates": "5"}
    (directory / "train.log").write_text(json.dumps({"epoch": 1, **values}) + "\n")
    return directory


def test_report(tmp_path):
    first, second = write_log(tmp_path / "ln", "4.5"), write_log(tmp_path / "bn", "4.25")
    (empty := tmp_path / "empty").mkdir()
    runs = (f"layer={first}", second, empty)
    result = completed("report", *runs, "--output", tmp_path / "out", "--title", "A & B")
    rows = list(csv.DictReader((tmp_path / "out/tables/summary.csv").open()))
    assert [row["run"] for row in rows] == ["layer", "bn", "empty"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<h1>A &amp; B</h1>" in page and "tables/summary.csv" in page
    assert "no `run.json`" in result.output and "empty/train.log" in result.output
    assert f"wrote {tmp_path / 'out' / 'index.html'} and " in result.output


def test_report_refusals(capsys, tmp_path):
    out = ("--output", tmp_path / "out")
    nothing = user_error(capsys, "report", tmp_path, *out)
    assert "nothing to report" in nothing and str(tmp_path) in nothing
    same = write_log(tmp_path / "ln", "4.5")
    absent = user_error(capsys, "report", same, tmp_path / "absent", *out)
    assert f"no directory `{tmp_path / 'absent'}`" in absent
    assert "called the same" in user_error(capsys, "report", same, same, *out)


def test_quickstart_refusals(capsys, tmp_path):
    line = user_error(capsys, "quickstart", "--data", tmp_path / "no", "--output", tmp_path / "out")
    assert f"{tmp_path}/no.train.de" in line
    # The text is German-English whatever the files are called.
    line = user_error(capsys, "quickstart", "--target-lang", "fr", "--output", tmp_path / "out")
    assert "--target-lang fr" in line and "--data" in line
    (tmp_path / "file").touch()
    line = user_error(
        capsys, "quickstart", "--data", tmp_path / "no", "--output", tmp_path / "file"
    )
    assert str(tmp_path / "file") in line


def test_score_tests_the_difference_to_another(tmp_path):
    lines = ["the cat sat on the mat", "a dog ran far away", "birds sing in the morning"] * 5
    files = {"ours": lines, "theirs": [line.replace("the", "one") for line in lines]}
    for name, texts in files.items():
        (tmp_path / name).write_text(
            "".join(
                f"S-{i}\ts\nT-{i}\t{right}\nD-{i}\t-0.1\t{text}\n"
                for i, (right, text) in enumerate(zip(lines, texts, strict=True))
            )
        )
    output = tmp_path / "score.json"
    arguments = (tmp_path / "ours", "--lang", "en", "--against", tmp_path / "theirs")
    printed = rbn("score", *arguments, "--json", output, "--overwrite").output
    scores = json.loads(output.read_text())
    assert set(scores) == {"tokenised", "sacrebleu"}
    for score in scores.values():
        test = score["significance"]
        assert test["against"] == str(tmp_path / "theirs") and test["samples"] == 1000
        assert test["bleu"] < score["bleu"] == pytest.approx(100) and test["p"] < 0.05
    score = scores["tokenised"]["significance"]["bleu"]
    assert f"BLEU {score:.2f} of {tmp_path / 'theirs'}; p of the difference 0.0" in printed
    assert printed.count("p of the difference 0.0") == 2
    assert "the search's" not in printed and "test set" not in printed
    for name, beam in (("ours", 5), ("theirs", 1)):
        with (tmp_path / name).open("a") as file:
            print({"_name": None, "common": {}, "generation": {"beam": beam}}, file=file)
    warned = f"{tmp_path / 'theirs'} was translated with beam 1: part of the difference is the"
    assert warned in rbn("score", *arguments).output
    text = (tmp_path / "theirs").read_text()
    (tmp_path / "theirs").write_text(text.replace("T-3\tthe", "T-3\ta"))
    warned = f"1 of 15 references in {tmp_path / 'theirs'} are others than in {tmp_path / 'ours'}"
    assert warned in rbn("score", *arguments).output
    without = rbn("score", *arguments[:3], "--json", output, "--overwrite")
    assert without.exit_code == 0 and "significance" not in output.read_text()
