"""Errors of the user: what is wrong, and the way out."""

import argparse
import dataclasses
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, Optional

__all__ = ["MISSING_DATA", "explain", "explain_usage", "plain_errors"]

_PACKAGE = Path(__file__).resolve().parent.parent
_BUGS = ("AttributeError", "TypeError", "KeyError", "IndexError", "NameError", "ImportError")


class _Raised(NamedTuple):
    """An exception: its type's name, its text, and the calls that it came through."""

    kind: str
    text: str
    stack: list[traceback.FrameSummary]

    @property
    def file(self) -> str:
        """Where it was raised; empty where that is not known."""
        return self.stack[-1].filename if self.stack else ""

    @property
    def is_refusal(self) -> bool:
        """Whether this package or the user's --user-dir raised it on purpose.

        ValueErrors that Python itself raises, as of `a, b = 1, 2, 3`, are bugs.
        """
        directories = getattr(sys.modules.get("rbn_fairseq.cli.options"), "user_directories", ())
        return bool(
            self.kind == "ValueError"
            and self.stack
            and re.search(r"\braise\b", self.stack[-1].line or "")
            and any(Path(self.file).resolve().is_relative_to(d) for d in (_PACKAGE, *directories))
        )


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the system's refusal of a file, such as a full disk, into a user's error."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{error.strerror or error}: `{error.filename or 'a file'}`.") from error


def explain(error: BaseException) -> Optional[str]:
    """Return the message of an exception for the user; ``None`` if it is no fault of theirs.

    Faults of the user are ValueErrors that this package or their own --user-dir raises, what
    fairseq refuses, and what the system does. Of errors in the midst of training, only the first
    kind and a lack of memory are; the others keep their traceback.
    """
    errors = list(_chain(error))
    for raised in errors:
        if raised.is_refusal:
            return raised.text
    functions = {frame.name for raised in errors for frame in raised.stack}
    training = bool({"train_step", "valid_step"} & functions)
    for raised in errors:
        for pattern, message in [_MEMORY] if training else [_MEMORY, *_HINTS]:
            match = re.search(pattern, f"{raised.file} {raised.kind}: {raised.text}", re.DOTALL)
            if match:
                return " ".join(match.expand(message).split())
    last = errors[0]
    from_fairseq = re.search(r"[/\\]fairseq(_cli)?[/\\]", last.file)
    if from_fairseq and not training and last.text and last.kind not in _BUGS:
        text = " ".join(last.text.split())
        return f"{text} (fairseq's message; RBN_TRACEBACK=1 shows where it comes from)"
    return None


def _chain(error: Optional[BaseException]) -> Iterator[_Raised]:
    """Yield an exception and those that it covers; one of another process from its text."""
    while error is not None:
        kind, text = type(error).__name__, str(error)
        if kind == "ProcessRaisedException":
            yield from _from_text(text)
        if isinstance(error, OSError) and error.strerror:
            file = f": `{os.fsdecode(error.filename)}`" if error.filename else ""
            kind, text = "OSError", f"{error.strerror}{file}"
        yield _Raised(kind, text, list(traceback.extract_tb(error.__traceback__)))
        handled = None if error.__suppress_context__ or kind in _BUGS else error.__context__
        error = error.__cause__ or handled


def _from_text(text: str) -> Iterator[_Raised]:
    """Read the exceptions of a traceback that another process wrote, the last one first."""
    frame = r'^  File "([^"]+)", line (\d+), in (\S+)\n    (.*)'
    last_line = r"^(?:[\w.]+\.)?(\w+): (.*?)(?=\n\n|\Z)"
    for part in reversed(text.split("Traceback (most recent call last):")[1:]):
        raised = re.search(last_line, part, re.MULTILINE | re.DOTALL)
        if raised:
            stack = [
                traceback.FrameSummary(file, int(number), function, line=line)
                for file, number, function, line in re.findall(frame, part, re.MULTILINE)
            ]
            yield _Raised(raised[1], raised[2].strip(), stack)


_MEMORY = (
    r"MemoryError|out of memory|can't allocate memory|std::bad_alloc|Unable to allocate",
    "There is not enough memory. Give a smaller --max-tokens (with a larger --update-freq for "
    "the same update), or a smaller model.",
)
# Errors of fairseq, torch and the system, as `file kind: text`, that do not say what to do.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"UnpicklingError",
        "The checkpoint holds types that are not safe to load; nothing of it was run.",
    ),
    (
        r"ModuleNotFoundError: .*\bfairseq\b(?!\.)",
        "fairseq is not installed: `rbn doctor` tells what to install.",
    ),
    (
        r"[Ss]entences? (?:lengths should not exceed|at index .* exceeds) max_tokens\D*(\d+)",
        r"A sentence is longer than --max-tokens \1: no batch can hold it. Give more, or leave "
        "long sentences out: --skip-invalid-size-inputs-valid-test and --max-source-positions.",
    ),
    (
        r"--share-all-embeddings requires",
        "--share-all-embeddings needs one dictionary for both languages and the same width in "
        "encoder and decoder: make the data with fairseq-preprocess --joined-dictionary, or leave "
        "the option out (of a recipe, in a copy that `rbn recipes copy` makes).",
    ),
    (
        r"Torch not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver",
        "There is no GPU here, or this torch is built without CUDA. Leave out --fp16 and other "
        "options of GPUs; `rbn doctor` tells what torch finds.",
    ),
    (
        r"Dataset not found: (\S+) \((.*)\)",
        r"The data in `\2` have no part `\1`: give one that fairseq-preprocess made, such as "
        "train, valid or test; `rbn doctor --data DATA-BIN` lists them.",
    ),
    (
        r"mmap length is greater than file size|buffer is smaller than requested|"
        r"could not be read from the buffer|cannot mmap an empty file|"
        r"offset must be non-negative and no greater than buffer length",
        "A file of the data is truncated; `rbn doctor --data DATA-BIN` tells which. Make the data "
        "again with fairseq-preprocess.",
    ),
    (
        r"Incorrect encoding detected in (.+?), please",
        r"The dictionary `\1` is not UTF-8. Make the data again with fairseq-preprocess.",
    ),
    (
        r"UnicodeDecodeError",
        "A file that is read is not UTF-8 text. Convert it: iconv -f LATIN1 -t UTF-8 FILE.",
    ),
    (
        r"The dataset is empty|fairseq/data/data_utils.py IndexError",
        "There is nothing to train on: fewer sentences than --required-batch-size-multiple (8), or "
        "all longer than --max-tokens or --max-source-positions allow.",
    ),
    (
        r"Address already in use|EADDRINUSE",
        "Another training uses this port: give another --distributed-port.",
    ),
    (
        r"MissingConfigException: .*Could not find '(\w+)/(\S+)'\s+Available options in '\w+':"
        r"(.*?)Config search path",
        r"Hydra: there is no \1=\2. There are: \3.",
    ),
    (
        r"(?:MissingConfigException|ConfigCompositionException|OverrideParseException|"
        r"MissingMandatoryValue|ConfigAttributeError|ConfigKeyError|ValidationError|"
        r"InterpolationKeyError|HydraException): (.*?)(?:\n(?:full_key|\s*\n)|\Z).*",
        r"Hydra: \1",
    ),
    (
        r" OSError: ([A-Z][^\n]*)",
        r"\1.",
    ),
)


MISSING_DATA = (
    "DATA-BIN is missing: rbn train DATA-BIN [OPTIONS], the directory that fairseq-preprocess "
    "filled first."
)

_MANY = 12  # choices that are listed


def explain_usage(parser: argparse.ArgumentParser, message: str) -> str:
    """Return a parser's message with the way out.

    Args:
        parser: fairseq's, with the options of the architecture, task and criterion given.
        message: what it would print below its usage.
    """
    unknown = re.fullmatch(r"unrecognized arguments: (.*)", message, re.DOTALL)
    if unknown:
        return _explain_unknown(parser, unknown[1].split())
    choice = re.fullmatch(
        r"argument (\S+): invalid choice: '?([^']*)'? \(choose from (.*)\)", message, re.DOTALL
    )
    if choice:
        return _explain_choice(*choice.groups())
    if message.endswith("are required: data"):
        return MISSING_DATA
    message = re.sub(r"invalid <lambda> value", "invalid value", message)  # of a list
    return f"{message[0].upper()}{message[1:]}."


def _meant(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f" Did you mean `{near[0]}`?" if near else ""


def _explain_unknown(parser: argparse.ArgumentParser, words: list[str]) -> str:
    from rbn_fairseq.cli.about import option_groups

    owners = {
        "--" + field.name.replace("_", "-"): component
        for _, component, configs in option_groups()
        for config in configs
        for field in dataclasses.fields(config)
        if field.metadata.get("help")
    }
    known = {option for action in parser._actions for option in action.option_strings}
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not options:
        return f"`{words[0]}` is one argument too many: there is one DATA-BIN."
    for option in options:
        if option in owners:
            return f"{option} belongs to {owners[option]}, which is not given."
    return f"Unknown option {options[0]}.{_meant(options[0], known | set(owners))}"


def _explain_choice(argument: str, given: str, listed: str) -> str:
    choices = [choice.strip(" '") for choice in listed.split(",")]
    if argument.startswith("--arch") and len(choices) > _MANY:
        shown = [choice for choice in choices if choice.startswith("rbn_")]
        known = f"This plugin's are {', '.join(shown)}."
    else:
        known = f"There are {', '.join(choices[:_MANY])}{', …' if choices[_MANY:] else ''}."
    return f"{argument}: there is no `{given}`.{_meant(given, choices)} {known}"
