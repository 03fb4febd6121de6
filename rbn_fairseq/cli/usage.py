"""What fairseq's parser refuses, in a sentence: which option belongs to what, and what is meant."""

import argparse
import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["MISSING_DATA", "explain_usage"]

MISSING_DATA = (
    "DATA-BIN is missing: rbn train DATA-BIN [OPTIONS], the directory that fairseq-preprocess "
    "filled first."
)

_MANY = 12  # choices that are listed


def explain_usage(parser: argparse.ArgumentParser, message: str) -> str:
    """Return a parser's message with a way out.

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
    from rbn_fairseq.cli.training_options import groups

    owners = {option: group.owner for group in groups() for option in group.options()}
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
