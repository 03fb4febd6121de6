"""Calls that torch.compile leaves as they are; imported late, as it loads torch's compiler."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["uncompiled"]


def _call(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return function(*arguments)


uncompiled: Callable[..., Tensor] = torch.compiler.disable(_call)
