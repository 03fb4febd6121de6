"""Safe loading of checkpoints: torch's own check stays on, and nothing in a file is run.

NumPy's own types build from a pickle an array of objects over addresses that the pickle gives:
whoever prints it runs what lies there. So a checkpoint's mentions of them mean the types here.
"""

import argparse
import ast
import collections
import operator
import pickle
import sys
import typing
from typing import Any, Self

import numpy as np
import torch
from fairseq.distributed.utils import _TensorPlaceholder
from numpy.typing import NDArray
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

__all__ = ["allow_fairseq_types", "compute", "run_no_settings"]

_NUMBERS = ("f8", "f4", "i8")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class _Kind:
    """A dtype of numbers."""

    def __init__(self, name: str, *_: bool) -> None:
        if name not in _NUMBERS:
            raise pickle.UnpicklingError(f"an array of {name!r}: only {_NUMBERS} are read")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """An array that takes its content from numbers' bytes alone, and is saved as NumPy's own."""

    def __new__(cls) -> Self:
        return np.empty(0).view(cls)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, by_columns, content = state
        super().__setstate__((version, shape, kind.dtype, by_columns, content))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _rebuild_array(*_: Any) -> NDArray[Any]:
    return _Array()


def _rebuild_scalar(kind: _Kind, content: bytes) -> Any:
    return np.frombuffer(content, kind.dtype)[0]


# For ``torch.serialization.add_safe_globals``: what stands for the names in a pickle.
_SAFE_ARRAYS: list[Any] = [_Array, _Kind, (_Array, "numpy.ndarray"), (_Kind, "numpy.dtype")]
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # NumPy 1; 2
    _SAFE_ARRAYS += [
        (_rebuild_array, f"{_module}._reconstruct"),
        (_rebuild_scalar, f"{_module}.scalar"),
    ]


def allow_fairseq_types() -> None:
    """Let ``torch.load(weights_only=True)`` read what fairseq puts into checkpoints.

    Plain containers of settings, none of which runs code when it is loaded.
    """
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            collections.defaultdict,
            dict,
            int,
            list,
            typing.Any,
            DictConfig,
            ListConfig,
            ContainerMetadata,
            Metadata,
            AnyNode,
            _TensorPlaceholder,
            *_SAFE_ARRAYS,
        ]
    )


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
            f"The setting {text!r} may hold literals and + - * of them, but nothing else. Nothing "
            "of it was run; a checkpoint with such a setting may be meant to harm."
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
    for name, module in sys.modules.copy().items():  # a thread may import meanwhile
        if name.startswith("fairseq."):
            vars(module)["eval"] = compute
