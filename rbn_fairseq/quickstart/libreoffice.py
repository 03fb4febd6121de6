"""German-English text that any Debian machine can fetch: the help pages of LibreOffice.

The two packages are downloaded and unpacked, not installed. Their pages are translations of one
another, paragraph by paragraph: a paragraph has the same file and element id in both.
"""

import os
import re
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

from rbn_fairseq.corpora.text import Pair

__all__ = ["fetch_pages", "read_page", "read_pairs", "shares_words"]

_PACKAGES = {
    "libreoffice-help-de": "usr/share/libreoffice/help/de/text",
    "libreoffice-help-en-us": "usr/share/libreoffice/help/en-US/text",
}
_OWN_TEXT = (
    "Or give text of your own: --data PREFIX --source-lang de --target-lang en "
    "(PREFIX/train.de, PREFIX/train.en and so on for valid and test)."
)


class _Paragraphs(HTMLParser):
    """Collects the text of headings and paragraphs by element id."""

    _TAGS = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6"))

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._id: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._TAGS:
            self._id = dict(attrs).get("id")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._TAGS:
            self._id = None

    def handle_data(self, data: str) -> None:
        if self._id is not None:
            self.texts[self._id] = self.texts.get(self._id, "") + data


def read_page(page: str) -> dict[str, str]:
    """Return the headings and paragraphs of an HTML page by element id, white space collapsed."""
    parser = _Paragraphs()
    parser.feed(page)
    return {name: " ".join(text.split()) for name, text in parser.texts.items()}


def shares_words(source: str, target: str) -> bool:
    """Tell whether more than a quarter of the words are on both sides.

    Such pairs are formulas and names, which copying the source translates. Counted are distinct
    words, against the side that has fewer of them.
    """
    left, right = (set(re.findall(r"\w+", side.lower())) for side in (source, target))
    return len(left & right) > min(len(left), len(right)) / 4


def _download(package: str, directory: Path) -> Path:
    for older in directory.glob(f"{package}_*.deb"):
        older.unlink()
    command = ["apt-get", "download", package]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    archives = sorted(directory.glob(f"{package}_*.deb"))
    if done.returncode != 0 or not archives:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        reason = errors[-1][2:].strip() if errors else "no reason given"
        raise ValueError(
            f"`{' '.join(command)}` failed: {reason}. Check the network and, as root, run "
            f"`apt-get update`. {_OWN_TEXT}"
        )
    return archives[0]


def fetch_pages(directory: Path) -> tuple[Path, Path]:
    """Download and unpack the help pages; what is there already is not fetched again.

    Returns:
        The directories of the German and of the English pages.

    Raises:
        ValueError: if apt is missing or the download fails; the message tells what to do.
    """
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    roots = []
    for package, pages in _PACKAGES.items():
        root = directory / package
        if not root.is_dir():
            if missing:
                raise ValueError(
                    f"The text comes from Debian packages, but there is no `{missing[0]}` here. "
                    f"Run this on Debian or Ubuntu (a container will do). {_OWN_TEXT}"
                )
            directory.mkdir(parents=True, exist_ok=True)
            archive = _download(package, directory)
            unfinished = directory / f"{package}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            command = ["dpkg-deb", "-x", str(archive), str(unfinished)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise ValueError(f"`{archive}` cannot be unpacked: {done.stderr.strip()}.")
            unfinished.rename(root)
        roots.append(root / pages)
    return roots[0], roots[1]


def _read_pair_of_pages(german: Path, english: Path, name: str) -> list[Pair]:
    paths = (german / name, english / name)
    source, target = (read_page(path.read_text(encoding="utf-8")) for path in paths)
    return [
        (source[paragraph], text)
        for paragraph, text in target.items()
        if source.get(paragraph) and len(text.split()) >= 4
    ]


def read_pairs(german: Path, english: Path) -> dict[str, list[Pair]]:
    """Return the pairs of paragraphs with at least four English words, by page."""
    names = sorted(
        str(path.relative_to(english))
        for path in english.rglob("*.html")
        if (german / path.relative_to(english)).is_file()
    )
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        read = pool.map(partial(_read_pair_of_pages, german, english), names, chunksize=50)
        return dict(zip(names, read, strict=True))
