"""The configuration that fairseq-train writes at the head of its log, read without running it."""

import ast
import math
from typing import Any

__all__ = ["parse_configuration"]


def _plain(node: ast.expr, text: str) -> Any:
    """Turn one expression into plain containers, numbers and strings."""
    match node:
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_plain(key, text): _plain(value, text) for key, value in pairs if key}
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_plain(item, text) for item in items]
        case ast.Call(func=ast.Name(id="Namespace" | "dict"), args=[], keywords=keywords):
            return {word.arg: _plain(word.value, text) for word in keywords if word.arg}
        case ast.Constant(value=value):
            return value
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _plain(operand, text)
            if isinstance(value, (int, float)):
                return -value
    # An enumeration's member stands there as its bare name, which may have hyphens.
    return ast.get_source_segment(text, node) or math.nan


def parse_configuration(text: str) -> dict[str, Any]:
    """Read the text of a configuration: a dictionary as Python writes it, and the rest of its line.

    Members of enumerations stand there as bare names (``relu``) and become strings, as does
    everything else that is no literal; ``Namespace(…)`` becomes a dictionary. Nothing is run.

    Raises:
        ValueError: if it is no dictionary, such as half of one that a killed run left.
    """
    try:
        found = _plain(ast.parse(text.strip(), mode="eval").body, text.strip())
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"The configuration cannot be read ({error}).") from error
    if not isinstance(found, dict):
        raise ValueError("The configuration is no dictionary.")
    return found
