"""Parallel text: the user's own, checked, or the help pages of LibreOffice, split by page."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from rbn_fairseq.corpora.lines import SPLITS, Pair

__all__ = ["read_text", "split_pages", "write_text"]


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
    wanted = {"test": test, "valid": valid, "train": train}
    parts: dict[str, list[Pair]] = {name: [] for name in wanted}
    seen: set[str] = set()
    unfilled = list(wanted)
    for page in order:
        if not unfilled:
            break
        part = parts[unfilled[0]]
        for source, target in pages[page]:
            if source not in seen and target not in seen:
                seen.update((source, target))
                part.append((source, target))
        if len(part) >= wanted[unfilled[0]]:
            del part[wanted[unfilled[0]] :]
            unfilled.pop(0)
    if not parts["train"]:
        number = sum(map(len, pages.values()))
        raise ValueError(
            f"{number} pairs on {len(pages)} pages are too few: {test} are for the test and "
            f"{valid} for validation."
        )
    return {name: parts[name] for name in SPLITS}


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(
            f"--data: there is no file `{path}`. PREFIX is a directory, PREFIX/train.de and so on, "
            "or what comes before .train.de, .valid.de, .test.de."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ValueError(f"--data: line {line} of `{path}` is not UTF-8.") from error
    lines = text.removesuffix("\n").split("\n") if text else []
    return [" ".join(line.split()) for line in lines]


def read_text(prefix: str, source_lang: str, target_lang: str) -> dict[str, list[Pair]]:
    """Read ``{train,valid,test}.{source,target}`` of a directory, or behind ``PREFIX.``.

    Raises:
        ValueError: if a file is missing, empty or not UTF-8, the two sides have different numbers
            of lines, or a line is empty; the message names file and line.
    """
    base = f"{prefix}/" if Path(prefix).is_dir() else f"{prefix}."
    parts = {}
    for split in SPLITS:
        paths = [Path(f"{base}{split}.{lang}") for lang in (source_lang, target_lang)]
        sides = [_read_lines(path) for path in paths]
        shorter, longer = sorted(zip(sides, paths, strict=True), key=lambda side: len(side[0]))
        if len(shorter[0]) < len(longer[0]):
            raise ValueError(
                f"--data: `{longer[1]}` has {len(longer[0])} lines, `{shorter[1]}` "
                f"{len(shorter[0])}: line {len(shorter[0]) + 1} of `{longer[1]}` has no partner. "
                "Line k of one file must translate line k of the other."
            )
        for lines, path in zip(sides, paths, strict=True):
            if not lines:
                raise ValueError(f"--data: the file `{path}` is empty.")
            empty = next((number for number, line in enumerate(lines, 1) if not line), 0)
            if empty:
                raise ValueError(
                    f"--data: line {empty} of `{path}` is empty. Take such lines out of both files."
                )
        parts[split] = list(zip(*sides, strict=True))
    return parts


def write_text(directory: Path, parts: Mapping[str, Sequence[Pair]], langs: Sequence[str]) -> None:
    """Write each part as ``PART.LANG``, one sentence a line."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, pairs in parts.items():
        for side, lang in enumerate(langs):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (directory / f"{name}.{lang}").write_text(lines, encoding="utf-8")
