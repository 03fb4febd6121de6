"""The quickstart's text: which is refused, naming the line, and how pages are split."""

import pytest

from rbn_fairseq.corpora.build import build
from rbn_fairseq.corpora.text import SPLITS, write_pairs
from rbn_fairseq.quickstart import corpus
from rbn_fairseq.quickstart.corpus import QuickstartText, read_text, split_pages

PARTS = {name: [(f"{name} quelle {i}", f"{name} target {i}") for i in range(3)] for name in SPLITS}


@pytest.fixture
def text(tmp_path):
    for split, pairs in PARTS.items():
        write_pairs(tmp_path, split, ("de", "en"), pairs)
    return tmp_path


def test_directory_and_prefix(text, tmp_path_factory):
    assert read_text(str(text), ("de", "en")) == PARTS
    other = tmp_path_factory.mktemp("other")
    for path in text.iterdir():
        (other / f"corpus.{path.name}").write_bytes(path.read_bytes())
    assert read_text(str(other / "corpus"), ("de", "en")) == PARTS


def test_white_space_is_collapsed(text):
    # fairseq ends a line at any of these, sentencepiece does not.
    (text / "train.de").write_text("\ufeffein\u2028Satz\t \nzwei\rWörter \r\ndrei\n", newline="")
    assert [pair[0] for pair in read_text(str(text), ("de", "en"))["train"]] == [
        "ein Satz",
        "zwei Wörter",
        "drei",
    ]


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("train.en", None, "there is no file"),
        ("valid.en", b"one\ntwo\n", "`{text}/valid.de` has 3 lines, `{text}/valid.en` 2"),
        ("test.de", b"eins\n \ndrei\n", "`{text}/test.de` has 3 lines, `{text}/test.en` 3, 1 of"),
        ("train.de", b"eins\nzwei \xe4\ndrei\n", "Line 2 of `{text}/train.de` is not UTF-8"),
    ],
)
def test_what_is_refused(text, name, content, expected):
    path = text / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_text(str(text), ("de", "en"))
    assert expected.format(text=text) in str(error.value)
    assert name in str(error.value)


def pages(number=40, size=5):
    return {
        f"p{p}": [(f"quelle {p} {i}", f"target {p} {i}") for i in range(size)]
        for p in range(number)
    }


def test_no_page_is_in_two_parts(monkeypatch):
    monkeypatch.setattr(corpus, "_VALID", 12)
    monkeypatch.setattr(corpus, "_TEST", 7)
    parts = split_pages(pages())
    assert (len(parts["valid"]), len(parts["test"])) == (12, 7)
    page = {name: {pair[0].split()[1] for pair in pairs} for name, pairs in parts.items()}
    assert not page["train"] & page["valid"]
    assert not page["train"] & page["test"]
    assert not page["valid"] & page["test"]


def test_no_sentence_is_in_two_parts(monkeypatch):
    monkeypatch.setattr(corpus, "_VALID", 10)
    monkeypatch.setattr(corpus, "_TEST", 10)
    # Every page says the same three sentences besides its own.
    said = [(f"gleich {i}", f"same {i}") for i in range(3)]
    same = {name: [*said, *own] for name, own in pages().items()}
    parts = split_pages(same)
    sources = [pair[0] for pairs in parts.values() for pair in pairs]
    assert len(sources) == len(set(sources))


def test_a_script_of_more_characters_than_pieces(tmp_path):
    letters = [chr(0x4E00 + i) for i in range(3500)]
    sentences = ["".join(letters[i::35]) for i in range(35)]
    pairs = [(sentence, f"sentence {i}") for i, sentence in enumerate(sentences * 2)]
    for split in SPLITS:
        write_pairs(tmp_path, split, ("zh-Hans", "en"), pairs)
    text = QuickstartText(str(tmp_path), ("zh-Hans", "en"), tmp_path)
    about = build(text, tmp_path / "data", False, print)
    assert about["pairs"] == dict.fromkeys(SPLITS, 70)
    words = (tmp_path / "data" / "bin" / "dict.zh-Hans.txt").read_text().split()[::2]
    assert len(set(letters) & set(words)) > 3400  # 0.9995 of all occurrences
