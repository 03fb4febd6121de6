"""Files of tagged texts: what is read, what is refused, and by which line; the standard."""

import json

import pytest

from command import user_error
from rbn_fairseq.corpora import build
from rbn_fairseq.corpora.tagging import STANDARDS, TaggedTexts, read_tagged
from tagging import write_tagged

SIZES = {"train": 30, "valid": 4, "test": 5}


@pytest.fixture
def files(tmp_path):
    write_tagged(tmp_path / "files", SIZES)
    return [tmp_path / "files" / f"{split}.txt" for split in SIZES]


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
def test_reading(tmp_path, end):
    text = "-DOCSTART- -X- O O\n\nEU\tB-ORG\r\nrejects  O\r\n\r\n\n \nHo I-PER\n"
    text += "üb E-PER-X\n中 M-LOC" + end
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert list(read_tagged(path)) == [
        (["EU", "rejects"], ["B-ORG", "O"]),
        (["Ho", "üb", "中"], ["I-PER", "E-PER-X", "M-LOC"]),
    ]


def test_columns_between_token_and_tag(tmp_path):
    path = tmp_path / "conll.txt"
    path.write_text("-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    assert list(read_tagged(path)) == [(["EU", "rejects"], ["B-ORG", "O"])]


@pytest.mark.parametrize(
    "line, words",
    [
        ("EU", "has not 2 columns: expected are a token, white space and, as the last column,"),
        ("New York B-LOC", "has not 2 columns"),
        ("EU ORG", "has the tag `ORG`: expected is O, or a type behind B-"),
        ("EU B-", "has the tag `B-`"),
        ("EU X-ORG", "has the tag `X-ORG`"),
        ("EU OO", "has the tag `OO`"),
        ("<pad> O", "has the token `<pad>`"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, words):
    path = tmp_path / "a.txt"
    path.write_text(f"a O\n\nb O\n{line}\nc O\n")
    with pytest.raises(ValueError) as error:
        list(read_tagged(path))
    assert f"Line 4 of `{path}` {words}" in str(error.value)


def test_what_is_written(files, no_fairseq, tmp_path, said):
    about = build.build(TaggedTexts(*files, 2), tmp_path / "out", False, said.append)
    assert about == json.loads((tmp_path / "out/bin/about.json").read_text())
    for split, path in zip(SIZES, files, strict=True):
        texts = list(read_tagged(path))
        for place, side in enumerate(("text", "label")):
            lines = (tmp_path / "out" / "text" / f"{split}.{side}").read_text().splitlines()
            assert lines == [" ".join(text[place]) for text in texts]
        begun = sum(tag[0] == "B" for _, tags in texts for tag in tags)  # every entity's first
        tokens = sum(len(tokens) for tokens, _ in texts)
        numbers = [about[unit][split] for unit in ("texts", "tokens", "entities")]
        assert numbers == [len(texts), tokens, begun]
    assert about["tags"] == ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
    assert not about["standard"] and about["differences"] == []
    build.build(TaggedTexts(*files, 2), tmp_path / "out", False, said.append)
    assert said[-1] == f"`{tmp_path / 'out'}` is finished already"
    with pytest.raises(ValueError, match="another value of min count"):
        build.build(TaggedTexts(*files, 1), tmp_path / "out", False, said.append)


def test_an_entity_may_begin_with_any_of_its_tags(tmp_path, no_fairseq):
    path = tmp_path / "a.txt"
    path.write_text("a I-X\nb I-X\nc O\nd E-Y\n\ne B-X\nf I-Y\n")
    about = build.build(TaggedTexts(path, path, path, 1), tmp_path / "out", False, print)
    assert about["tokens"]["test"] == 6 and about["entities"]["test"] == 4


def test_the_standard(files, no_fairseq, tmp_path):
    numbers = build.build(TaggedTexts(*files, 2), tmp_path / "any", False, print)
    same = {unit: numbers[unit] for unit in ("texts", "tokens")}
    standard = TaggedTexts(*files, 2, "Mine", same)
    about = build.build(standard, tmp_path / "standard", False, print)
    assert about["standard"] and about["corpus"] == "Mine"
    other = TaggedTexts(*files, 2, **STANDARDS["conll2003"])
    with pytest.raises(ValueError, match="not the standard CoNLL-2003 English") as error:
        build.build(other, tmp_path / "other", False, print)
    assert "train has 30 texts, the standard has 14,041" in str(error.value)
    about = build.build(other, tmp_path / "other", True, print)
    assert not about["standard"] and len(about["differences"]) == 9


def test_refusals_of_the_command(capsys, files, tmp_path):
    files[2].write_text("\n")
    command = ["prepare", "tagging", "--output", tmp_path / "out"]
    for split, path in zip(SIZES, files, strict=True):
        command += [f"--{split}", path]
    assert "has no text" in user_error(capsys, *command)
    files[1].unlink()
    assert f"--valid: there is no file `{files[1]}`" in user_error(capsys, *command)
