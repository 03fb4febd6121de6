"""Moses' tokeniser: the Perl script where that runs, else sacremoses, its port to Python."""

import importlib.util
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Optional

from sacremoses import MosesTokenizer

from rbn_fairseq.corpora.text import map_chunks, process_pool

__all__ = ["MOSES", "Tokeniser"]

#: What :class:`Tokeniser` does, in fairseq's options.
MOSES = {"tokenizer": "moses", "moses_no_dash_splits": True}

# "It is 5,300." Commas in numbers stay, apostrophes are escaped, the full stop is cut off.
_SAMPLE, _SAMPLE_TOKENS = "It's 5,300.", "It &apos;s 5,300 ."


def _find_script() -> Optional[Path]:
    # The class of this package is not used: it asks Moses to split at hyphens, too.
    package = importlib.util.find_spec("mosestokenizer")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).with_name("tokenizer-v1.1.perl")


def _run_perl(script: Path, lang: str, lines: Sequence[str]) -> list[str]:
    process = subprocess.run(
        ["perl", str(script), "-q", "-l", lang],
        input="".join(line + "\n" for line in lines).encode(),
        capture_output=True,
    )
    if process.returncode != 0:
        message = process.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise ValueError(f"Moses' tokeniser ended with exit status {process.returncode}: {message}")
    tokenised = process.stdout.decode("utf-8").split("\n")[:-1]
    if len(tokenised) != len(lines):
        raise ValueError(
            f"Moses' tokeniser was given {len(lines)} lines and returned {len(tokenised)}."
        )
    return tokenised


def _perl_works(script: Path) -> bool:
    # Asking for `perl` is not enough: Debian's perl-base lacks modules that the script uses.
    try:
        return _run_perl(script, "en", [_SAMPLE]) == [_SAMPLE_TOKENS]
    except (OSError, ValueError):
        return False


@cache
def _port(lang: str) -> MosesTokenizer:
    return MosesTokenizer(lang)


def _run_port(lang: str, lines: Sequence[str]) -> list[str]:
    return [_port(lang).tokenize(line, return_str=True) for line in lines]


class Tokeniser:
    """Moses' tokeniser with its escapes (``&apos;`` and so on), not splitting at hyphens.

    Args:
        jobs: processes at a time.

    Attributes:
        name: the tokeniser with its version; it begins with ``sacremoses`` if Perl does not run.
    """

    def __init__(self, jobs: int):
        self._jobs, script = jobs, _find_script()
        self._script = script if script is not None and _perl_works(script) else None
        package = "sacremoses" if self._script is None else "mosestokenizer"
        self.name = f"{package} {metadata.version(package)}"
        if self._script is not None:
            self.name = f"Moses tokenizer.perl 1.1, {self.name}"

    def __call__(self, lines: Iterable[str], lang: str) -> Iterator[str]:
        """Tokenise lines of a language, as many lines as there are."""
        if self._script is None:
            function = partial(_run_port, lang)
            pool: Executor = process_pool(self._jobs)
        else:  # the threads only wait for their processes
            function = partial(_run_perl, self._script, lang)
            pool = ThreadPoolExecutor(self._jobs)
        with pool:
            yield from map_chunks(function, lines, pool, ahead=2 * self._jobs)
