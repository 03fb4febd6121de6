"""A checkpoint's settings are data: fairseq computes them where it would run them."""

import ast
import operator
import sys
from typing import Any

__all__ = ["compute", "run_no_settings"]

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def compute(text: Any) -> Any:
    """Compute a literal, or sums and products of some, such as ``[(512, 3)] * 20``.

    Raises:
        TypeError: if it is no text, as ``eval`` does.
        ValueError: if it is anything else, such as a call.
    """
    if not isinstance(text, str):
        raise TypeError(f"a setting to compute must be a text, but is {text!r}.")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"The setting {text!r} may hold numbers, lists and other literals, and + - * of them, "
            "but nothing else: write it so. Nothing of it was run; a checkpoint with such a "
            "setting may be meant to harm."
        ) from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    return ast.literal_eval(node)


def run_no_settings() -> None:
    """Put :func:`compute` in the place of ``eval`` in all of fairseq's modules.

    fairseq evaluates settings such as ``adaptive_softmax_cutoff``, and with a model come those of
    its checkpoint, which could so run anything.
    """
    for name, module in tuple(sys.modules.items()):
        if name.startswith("fairseq."):
            vars(module)["eval"] = compute
