"""Errors of the user: what is wrong, and the way out."""

import argparse
import re
import traceback
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, Optional

_PACKAGE = Path(__file__).resolve().parent.parent
#: Directories of --user-dir; errors from there are the user's.
user_directories: list[Path] = []
_BUGS = ("AttributeError", "TypeError", "KeyError", "IndexError", "NameError", "ImportError")


class _Raised(NamedTuple):
    """An exception: its type's name, its text, where it was raised, and what was being called."""

    kind: str
    text: str
    file: str
    line: str
    functions: frozenset[str]

    @property
    def is_refusal(self) -> bool:
        """Whether this package or the user's --user-dir raised it on purpose.

        ValueErrors that Python itself raises, as of `a, b = 1, 2, 3`, are bugs.
        """
        file, own = Path(self.file).resolve(), (_PACKAGE, *user_directories)
        return (
            self.kind == "ValueError"
            and re.search(r"\braise\b", self.line) is not None
            and any(file.is_relative_to(directory) for directory in own)
        )


def explain(error: BaseException) -> Optional[str]:
    """Return the message of an exception for the user; ``None`` if it is no fault of theirs.

    Faults of the user are ValueErrors that this package or their own --user-dir raises, what
    fairseq refuses, and what the system does. Of errors in the midst of training, only the first
    kind and a lack of memory or disk are; the others keep their traceback.
    """
    errors = _read_tracebacks("".join(traceback.format_exception(error)))
    for raised in errors:
        if raised.is_refusal:
            return raised.text
    training = any({"train_step", "valid_step"} & raised.functions for raised in errors)
    for raised in errors:
        for pattern, message in _HINTS[:3] if training else _HINTS:
            match = re.search(pattern, f"{raised.file} {raised.kind}: {raised.text}", re.DOTALL)
            if match:
                return " ".join(match.expand(message).split())
    last = errors[0]
    from_fairseq = re.search(r"[/\\]fairseq(_cli)?[/\\]", last.file)
    if from_fairseq and not training and last.text and last.kind not in _BUGS:
        text = " ".join(last.text.split())
        return f"{text} (fairseq's message; RBN_TRACEBACK=1 shows where it comes from)"
    return None


def _read_tracebacks(text: str) -> list[_Raised]:
    """Read exceptions and those that they cover, the last first; also of another process."""
    frame = r'^  File "([^"]+)", line \d+, in (\S+)(?:\n    (\S.*))?'
    last_line = r"^(?:[\w.]+\.)?(\w+)(?:: (.*))?"
    covers = r"\n\n(?:During handling of|The above exception was)"
    errors = []
    first, *others = text.split("Traceback (most recent call last):\n")
    for part in reversed(others or [first]):
        frames = re.findall(frame, part, re.MULTILINE)
        raised = re.search(last_line, re.split(covers, part)[0], re.MULTILINE | re.DOTALL)
        if not raised:
            continue
        file, _, line = frames[-1] if frames else ("", "", "")
        functions = frozenset(function for _, function, _ in frames)
        errors.append(_Raised(raised[1], (raised[2] or "").strip(), file, line, functions))
        if raised[1] in _BUGS:  # what it was handling is no fault of the user's
            break
    return errors


# Errors of fairseq, torch and the system, as `file kind: text`, that do not say what to do; the
# first three may come in training, too.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"\[Errno (?:27|28|122)\] ([^\n]*)",
        r"\1: the disk or quota is full, or a limit on the size of files (ulimit -f) is reached. "
        "Make room and give the same command again: a training resumes from its last checkpoint.",
    ),
    (
        r"MemoryError|out of memory|(?:can't|Cannot) allocate memory|bad_alloc|Unable to allocate",
        "There is not enough memory. Give a smaller --max-tokens (with a larger --update-freq for "
        "the same update), or a smaller model; commands of `rbn` take --device cpu, those "
        "of fairseq --cpu.",
    ),
    (
        r"FloatingPointError: (?:gradients are Nan/Inf|Minimum loss scale)",
        "The training diverged: its gradients are not finite. Give a lower --lr, a longer "
        "--warmup-updates or --clip-norm; SAVE_DIR/crash.pt is the model when it happened.",
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
        r"Could not infer task type from \{.*?'_name': '(\w+)'",
        r"The checkpoint was trained with --task \1, which is not known here: give its --user-dir.",
    ),
    (
        r"Torch not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver",
        "There is no GPU here, or this torch is built without CUDA. Leave out --fp16, --device "
        "cuda and other options of GPUs; `rbn doctor` tells what torch finds.",
    ),
    (
        r"cannot mmap an empty file",
        "A part of the data has no sentences, or its file was cut off: give another part, or make "
        "the data again from text; `rbn doctor --data DATA-BIN` tells which part it is.",
    ),
    (
        r"fairseq_cli/train.py KeyError: '(\w+)'",
        r"A validation has no `\1`, by which --best-checkpoint-metric chooses: give what computes "
        "it (--report-accuracy for accuracy), or leave it out.",
    ),
    (
        r"The dataset is empty|fairseq/data/data_utils.py IndexError",
        "There is nothing to train on: fewer sentences than --required-batch-size-multiple (8), or "
        "all longer than --max-tokens or --max-source-positions allow.",
    ),
    (
        r"(?:MissingConfigException|ConfigCompositionException|OverrideParseException|"
        r"MissingMandatoryValue|ConfigAttributeError|ConfigKeyError|ValidationError|"
        r"Interpolation\w+Error|HydraException|hydra/_internal\S* ValueError): "
        r"(.*?)(?:\s*Config search path|\nfull_key|\Z).*",
        r"Hydra: \1",
    ),
    (r"(?:yaml/\w+|omegaconf/_utils)\.py \w+Error: (.*)", r"A recipe is no YAML: \1."),
    (r"\[Errno \d+\] ([^\n]*)", r"\1."),
)

MISSING_DATA = (
    "DATA-BIN is missing, the first argument (as in rbn train DATA-BIN [OPTIONS]): the directory "
    "that fairseq-preprocess filled."
)


def explain_usage(parser: argparse.ArgumentParser, message: str) -> str:
    """Return a parser's message with the way out.

    Args:
        parser: fairseq's, with the options of the architecture, task and criterion given.
        message: what it would print below its usage.
    """
    if message.endswith("are required: data"):
        return MISSING_DATA
    message = re.sub(r"(\(choose from .{200}).*", r"\1…)", message, flags=re.DOTALL)
    text = f"{message[0].upper()}{message[1:]}."
    given = re.search(r"(?:unrecognized arguments|invalid choice): '?([^\s'=]+)", message)
    if given:
        known = {word for action in parser._actions for word in action.option_strings}
        known |= {str(word) for action in parser._actions for word in action.choices or ()}
        near = get_close_matches(given[1], known, n=1, cutoff=0.75)
        text += f" Did you mean `{near[0]}`?" if near else ""
        if given[1].startswith("-"):
            text += " The plugin's options need its --arch, --criterion or --task: `rbn options`."
    return text
