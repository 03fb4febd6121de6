"""Moses' tokeniser, in Perl where that runs, else its port to Python."""

import importlib.util
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Optional

from sacremoses import MosesTokenizer

from rbn_fairseq.corpora.text import map_chunks

__all__ = ["Tokeniser"]

# "It is 5,300." Commas in numbers stay, apostrophes are escaped, the full stop is cut off.
_SAMPLE, _SAMPLE_TOKENS = "It's 5,300.", "It &apos;s 5,300 ."


def _script() -> Optional[Path]:
    # The class of this package is not used: it asks Moses to split at hyphens, too.
    package = importlib.util.find_spec("mosestokenizer")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).with_name("tokenizer-v1.1.perl")


def _run_perl(script: Path, lang: str, lines: Sequence[str]) -> list[str]:
    done = subprocess.run(
        ["perl", str(script), "-q", "-l", lang],
        input="".join(line + "\n" for line in lines).encode(),
        capture_output=True,
    )
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise ValueError(f"Moses' tokeniser ended with exit status {done.returncode}: {message}")
    tokenised = done.stdout.decode("utf-8").split("\n")[:-1]
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
        perl: whether it is Moses' own script; else it is sacremoses.
        name: what it is, with the version.
    """

    def __init__(self, jobs: int):
        self._jobs, self._script = jobs, _script()
        self.perl = self._script is not None and _perl_works(self._script)
        package = "mosestokenizer" if self.perl else "sacremoses"
        script = "Moses tokenizer.perl 1.1, " if self.perl else ""
        self.name = f"{script}{package} {metadata.version(package)}"

    def _executor(self, perl: bool) -> Executor:
        if perl:  # the threads only wait for their processes
            return ThreadPoolExecutor(self._jobs)
        ignore = (signal.SIGINT, signal.SIG_IGN)  # the user's interrupt is for the parent
        return ProcessPoolExecutor(self._jobs, initializer=signal.signal, initargs=ignore)

    def _tokenise(self, lines: Iterable[str], lang: str, perl: bool) -> Iterator[str]:
        function = partial(_run_perl, self._script, lang) if perl else partial(_run_port, lang)
        with self._executor(perl) as executor:
            yield from map_chunks(function, lines, executor, ahead=2 * self._jobs)

    def __call__(self, lines: Iterable[str], lang: str) -> Iterator[str]:
        """Tokenise lines of a language, as many lines as there are."""
        return self._tokenise(lines, lang, self.perl)

    def differing(self, lines: Iterable[str], tokenised: Iterable[str], lang: str) -> Optional[int]:
        """Count the lines that sacremoses tokenises otherwise; ``None`` = Perl did not run.

        Args:
            lines: before.
            tokenised: what this tokeniser made of them.
            lang: their language.
        """
        if not self.perl:
            return None
        other = self._tokenise(lines, lang, perl=False)
        return sum(ours != theirs for ours, theirs in zip(tokenised, other, strict=True))
