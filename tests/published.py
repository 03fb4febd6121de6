"""Archives like the published ones, of generated text; no real sentence is in them."""

import io
import random
import tarfile
from pathlib import Path

import corpus

IWSLT_TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

# White space that is no line feed, a bar, quotes, an upper-case sigma at the end of a word, an
# ampersand, a hyphen, one-sided lines, and a ratio above 1.5.
ODD = [
    ("Zwei\u2028Zeilen sind\u0085eine .", "Two\u2028lines are\u0085one ."),
    ("\u00a0Fest\u00a0verbunden\t", "  Fast\u00a0bound "),
    ("A|B und C", "A|B and C"),
    ('Er sagte: "Ja\u2019s gut\'s"', 'He said: "it\'s fine"'),
    ("ΟΔΟΣ ist Σ", "ΟΔΟΣ is Σ"),
    ("R&D <b>Haus-Tür</b> [1]", "R&D <b>house-door</b> [1]"),
    ("", "only English"),
    ("nur deutsch", "\u00a0"),
    ("eins zwei drei vier", "one"),
    ("Am 3. Mai, um 5,300 Uhr...", "On May 3, at 5,300 o'clock..."),
]


def pairs(number, seed, directory):
    """Spelt-out numbers, with the first word capitalised and a full stop."""
    corpus.write_corpus(directory, {"part": number}, seed)
    sides = ((directory / f"part.{lang}").read_text().split("\n")[:-1] for lang in ("de", "en"))
    return [(f"{de.capitalize()}.", f"{en.capitalize()}.") for de, en in zip(*sides, strict=True)]


def write_archive(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def iwslt_members(directory: Path, number=200) -> dict[str, str]:
    rng = random.Random(3)
    train = pairs(number, 1, directory) + ODD
    rng.shuffle(train)
    talks = {talk: pairs(7, 10 + i, directory) + ODD[:6] for i, talk in enumerate(IWSLT_TALKS)}
    members = {"de-en/README": "A file that nobody asked for.\n"}
    for side, lang in enumerate(("de", "en")):
        lines = [
            "<url>http://localhost</url>",
            "<keywords>numbers</keywords>",
            "<talkid>1</talkid>",
        ]
        lines += ["<title>Zahlen: 1</title>", "<description>TED: 1, 2</description>"]
        lines += ["<speaker>Nobody At-All</speaker>"]
        lines += [pair[side] for pair in train]
        members[f"de-en/train.tags.de-en.{lang}"] = "".join(line + "\n" for line in lines)
        for talk, sentences in talks.items():
            lines = ['<?xml version="1.0"?>', "<doc>", "<title>left out</title>"]
            lines += [
                f'<seg id="{number}"> {pair[side]}  </seg> '
                for number, pair in enumerate(sentences, 1)
            ]
            members[f"de-en/IWSLT14.{talk}.de-en.{lang}.xml"] = "\n".join([*lines, "</doc>\n"])
    return members


def wmt_members(directory: Path, train=40, valid=5, test=6) -> dict[str, str]:
    """Pieces made by hand: every second letter begins a piece."""
    members = {"vocab.bpe.32000": "left out\n"}
    sizes = {"train.tok.clean": train, "newstest2013.tok": valid, "newstest2014.tok": test}
    for seed, (stem, size) in enumerate(sizes.items()):
        text = pairs(size, 20 + seed, directory)
        for side, lang in enumerate(("de", "en")):
            lines = (
                " ".join("@@ ".join(word[i : i + 2] for i in range(0, len(word), 2))
                         for word in pair[side].split())
                for pair in text
            )  # fmt: skip
            members[f"{stem}.bpe.32000.{lang}"] = "".join(line + "\n" for line in lines)
    return members


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
