"""NumPy's arrays and scalars out of a checkpoint, made here and not by what the file says.

NumPy's own types build from a pickle an array of objects over addresses that the pickle gives:
whoever prints it runs what lies there. So a checkpoint's mentions of them mean these instead.
"""

import pickle
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["SAFE_ARRAYS"]

_NUMBERS = ("f8", "f4", "i8")


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


#: For ``torch.serialization.add_safe_globals``: what stands for the names in a pickle.
SAFE_ARRAYS: list[Any] = [_Array, _Kind, (_Array, "numpy.ndarray"), (_Kind, "numpy.dtype")]
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # NumPy 1; 2
    SAFE_ARRAYS += [
        (_rebuild_array, f"{_module}._reconstruct"),
        (_rebuild_scalar, f"{_module}.scalar"),
    ]
