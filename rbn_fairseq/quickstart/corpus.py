"""The quickstart's corpus: text, checked and split, in pieces of sentencepiece, binary."""

import hashlib
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import sentencepiece
from rich.console import Console

from rbn_fairseq.corpora.build import binarise
from rbn_fairseq.corpora.text import SPLITS, Pair, read_lines, write_pairs
from rbn_fairseq.pieces import PIECES, write_pieces
from rbn_fairseq.quickstart.libreoffice import fetch_pages, read_pairs, shares_words

__all__ = ["Data", "prepare", "read_text", "split_pages"]

_TRAIN, _VALID, _TEST = 13_000, 500, 300
_LONGEST = 60  # words of a side of a help page's paragraph
_LONGEST_PIECES = 250
_FEWEST = 8  # fairseq drops what is no multiple of it (--required-batch-size-multiple)
_VOCABULARY = 3_000


@dataclass(frozen=True)
class Data:
    """Prepared data of a quickstart.

    Attributes:
        bin: directory for fairseq.
        source: raw test sentences.
        reference: their translations.
        about: where the text is from, and how much of it there is.
    """

    bin: Path
    source: Sequence[str]
    reference: Sequence[str]
    about: Mapping[str, Any]


def split_pages(
    pages: Mapping[str, Sequence[Pair]], valid: int, test: int, train: int, seed: int = 1
) -> dict[str, list[Pair]]:
    """Split by page, never by paragraph, because the paragraphs of a page resemble each other.

    A source or a target that occurred before is left out, so that no sentence of one part is
    also in another.

    Args:
        pages: pairs by page.
        valid: number of pairs for validation.
        test: number of pairs for the test.
        train: largest number of pairs for training.
        seed: of the order of pages.

    Returns:
        The pairs of each part.

    Raises:
        ValueError: if there are too few pairs.
    """
    order = sorted(pages)
    random.Random(seed).shuffle(order)
    unread = iter(order)
    parts: dict[str, list[Pair]] = {}
    seen: set[str] = set()
    for part, number in ("test", test), ("valid", valid), ("train", train):
        pairs = parts[part] = []
        while len(pairs) < number and (page := next(unread, None)) is not None:
            for source, target in pages[page]:
                if source not in seen and target not in seen:
                    seen.update((source, target))
                    pairs.append((source, target))
        del pairs[number:]
    if not parts["train"]:
        raise ValueError(
            f"{sum(map(len, pages.values()))} pairs on {len(pages)} pages are too few: {test} are "
            f"for the test and {valid} for validation."
        )
    return {split: parts[split] for split in SPLITS}


def _read_side(path: Path) -> list[str]:
    """Read one side; white space is collapsed, as fairseq would end lines at some of it."""
    if not path.is_file():
        raise ValueError(
            f"--data: there is no file `{path}`. PREFIX is a directory, PREFIX/train.de and so on, "
            "or what comes before .train.de, .valid.de, .test.de."
        )
    lines = [" ".join(line.removeprefix("\ufeff").split()) for line in read_lines(path)]
    if not lines:
        raise ValueError(f"--data: the file `{path}` is empty.")
    if "" in lines:
        raise ValueError(
            f"--data: line {lines.index('') + 1} of `{path}` is empty. Take such lines out of both "
            "files."
        )
    return lines


def read_text(prefix: str, source_lang: str, target_lang: str) -> dict[str, list[Pair]]:
    """Read ``{train,valid,test}.{source,target}`` of a directory, or behind ``PREFIX.``.

    Raises:
        ValueError: if a file is missing, empty or not UTF-8, the two sides have different numbers
            of lines, or a line is empty; the message names the file.
    """
    base = f"{prefix}/" if Path(prefix).is_dir() else f"{prefix}."
    parts = {}
    for split in SPLITS:
        paths = [Path(f"{base}{split}.{lang}") for lang in (source_lang, target_lang)]
        source, target = map(_read_side, paths)
        if len(source) != len(target):
            raise ValueError(
                f"--data: `{paths[0]}` has {len(source)} lines, `{paths[1]}` {len(target)}. Line k "
                "of one file must translate line k of the other."
            )
        parts[split] = list(zip(source, target, strict=True))
    return parts


def _user_text(prefix: str, langs: Sequence[str]) -> dict[str, list[Pair]]:
    parts = read_text(prefix, *langs)
    if len(parts["train"]) < _FEWEST:
        raise ValueError(
            f"--data: {len(parts['train'])} pairs to train on are too few: {_FEWEST} are the "
            "least, and a model that translates takes some thousands."
        )
    if len(parts["test"]) > _TEST:
        chosen = sorted(random.Random(1).sample(range(len(parts["test"])), _TEST))
        parts["test"] = [parts["test"][index] for index in chosen]
    return parts


def _help_text(cache: Path) -> dict[str, list[Pair]]:
    pages = {
        page: [
            pair
            for pair in pairs
            if not shares_words(*pair) and max(len(side.split()) for side in pair) <= _LONGEST
        ]
        for page, pairs in read_pairs(*fetch_pages(cache)).items()
    }
    return split_pages(pages, valid=_VALID, test=_TEST, train=_TRAIN)


def _help_packages(out: Path) -> str:
    packages = " and ".join(sorted(path.stem for path in (out / "debian").glob("*.deb")))
    return f"LibreOffice help, Debian packages {packages.replace('%3a', ':')}"


def _learn_pieces(text: Path, model: Path, langs: Sequence[str]) -> Any:
    paths = [text / f"train.{lang}" for lang in langs]
    characters = set().union(*(path.read_text(encoding="utf-8") for path in paths))
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(path) for path in paths],
            model_prefix=str(model.with_suffix("")),
            vocab_size=_VOCABULARY,
            hard_vocab_limit=False,  # a small text has fewer pieces
            # All of them, unless the script has so many that they would fill the vocabulary.
            character_coverage=1.0 if len(characters) < _VOCABULARY / 4 else 0.9995,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"sentencepiece cannot make a vocabulary of the text: {error}") from error
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def _build(
    directory: Path, parts: Mapping[str, list[Pair]], langs: Sequence[str]
) -> dict[str, int]:
    """Write text, pieces and binary data of sentences that are not too long; count their pairs."""
    text, pieces = directory / "text", directory / "pieces"
    text.mkdir()
    pieces.mkdir()
    write_pairs(text, "train", langs, parts["train"])
    model = _learn_pieces(text, directory / "spm.model", langs)
    pairs = {}
    for split, sentences in parts.items():
        short, encoded = [], []
        for pair in sentences:
            source, target = (model.encode(side, out_type=str) for side in pair)
            if max(len(source), len(target)) <= _LONGEST_PIECES:
                short.append(pair)
                encoded.append((" ".join(source), " ".join(target)))
        if not short:
            raise ValueError(f"--data: no {split} pair is shorter than {_LONGEST_PIECES} pieces.")
        write_pairs(text, split, langs, short)
        write_pairs(pieces, split, langs, encoded)
        pairs[split] = len(short)
    binarise(pieces, directory / "bin", langs)
    return pairs


def prepare(
    out: Path, data: Optional[str], source_lang: str, target_lang: str, console: Console
) -> Data:
    """Prepare the data in ``out/data``, or read it if that is there already.

    Args:
        out: the quickstart's directory.
        data: directory or prefix of the user's text; ``None`` = LibreOffice's help pages.
        source_lang: language of the sources.
        target_lang: language of the targets.
        console: to say what is being done.

    Raises:
        ValueError: if the text cannot be had or used, or ``out`` was made from other text.
    """
    directory, langs = out / "data", (source_lang, target_lang)
    if data is None and langs != ("de", "en"):
        raise ValueError(
            f"--source-lang {source_lang} --target-lang {target_lang}: the help pages are taken as "
            "de-en. Other languages need text of your own: --data PREFIX."
        )
    parts = None if data is None else _user_text(data, langs)
    digest = None
    if parts is not None:
        text = json.dumps([parts[split] for split in SPLITS], ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).hexdigest()
    request = {"languages": f"{source_lang}-{target_lang}", "sha256": digest}
    note = directory / "about.json"
    if note.exists():
        about = json.loads(note.read_text(encoding="utf-8"))
        if about["request"] != request:
            raise ValueError(
                f"`{out}` was made from other text ({about['text']}, "
                f"{about['request']['languages']}). Choose another directory with --output, or "
                "remove that one."
            )
    else:
        with console.status("reading the text, learning the vocabulary"):
            parts = parts or _help_text(out / "debian")
            unfinished = out / "data.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            pairs = _build(unfinished, parts, langs)
            about = {"text": data or _help_packages(out), "pairs": pairs, "request": request}
            (unfinished / note.name).write_text(json.dumps(about, indent=1), encoding="utf-8")
            unfinished.rename(directory)
    if not (directory / "bin" / PIECES).exists():
        write_pieces(directory / "bin", "sentencepiece", directory / "spm.model")
    source, reference = (list(read_lines(directory / "text" / f"test.{lang}")) for lang in langs)
    return Data(directory / "bin", source, reference, about)
