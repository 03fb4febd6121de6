"""German-English text that any Debian machine can fetch: the help pages of LibreOffice.

The two packages are downloaded and unpacked, not installed. Their pages are translations of one
another, paragraph by paragraph: a paragraph has the same file and element id in both.
"""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

from rbn_fairseq.corpora.text import Pair

__all__ = ["fetch_pages", "read_page", "read_pairs", "shares_words"]

_PACKAGES = {
    "libreoffice-help-de": "usr/share/libreoffice/help/de/text",
    "libreoffice-help-en-us": "usr/share/libreoffice/help/en-US/text",
}


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


def _run(command: list[str], directory: Path) -> None:
    try:
        subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().split("\n")[-1]
        raise ValueError(
            f"The text comes from Debian packages, but `{' '.join(command)}` failed: {reason}. Run "
            "this on Debian or Ubuntu (a container will do), after `apt-get update` as root. Or "
            "give text of your own: --data PREFIX --source-lang de --target-lang en "
            "(PREFIX/train.de, PREFIX/train.en and so on for valid and test)."
        ) from None


def fetch_pages(directory: Path) -> tuple[Path, Path]:
    """Download and unpack the help pages; what is there already is not fetched again.

    Returns:
        The directories of the German and of the English pages.

    Raises:
        ValueError: if apt is missing or the download fails; the message tells what to do.
    """
    for package in _PACKAGES:
        if (directory / package).is_dir():
            continue
        directory.mkdir(parents=True, exist_ok=True)
        for archive in directory.glob(f"{package}_*.deb"):
            archive.unlink()
        _run(["apt-get", "download", package], directory)
        (archive,) = directory.glob(f"{package}_*.deb")
        unpacked = directory / f"{package}.unfinished"
        shutil.rmtree(unpacked, ignore_errors=True)
        _run(["dpkg-deb", "-x", archive.name, unpacked.name], directory)
        unpacked.rename(directory / package)
    german, english = (directory / package / pages for package, pages in _PACKAGES.items())
    return german, english


def read_pairs(german: Path, english: Path) -> dict[str, list[Pair]]:
    """Return the pairs of paragraphs with at least four English words, by page."""
    pages = {}
    for path in english.rglob("*.html"):
        name = str(path.relative_to(english))
        if (german / name).is_file():
            source = read_page((german / name).read_text(encoding="utf-8"))
            target = read_page(path.read_text(encoding="utf-8"))
            pages[name] = [
                (source[paragraph], text)
                for paragraph, text in target.items()
                if source.get(paragraph) and len(text.split()) >= 4
            ]
    return pages
