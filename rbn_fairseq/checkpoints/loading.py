"""Safe loading: torch's own check stays on, and the types that fairseq writes are allowed."""

import argparse
import collections
import typing
from typing import Any

import numpy as np
import torch
from fairseq.distributed.utils import _TensorPlaceholder
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

__all__ = ["allow_fairseq_types"]


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
            *_numpy_types(),
        ]
    )


def _numpy_types() -> list[Any]:
    """Return what rebuilds arrays and scalars of numbers: --eval-bleu logs some."""
    array = np.zeros(1)
    rebuild_array, rebuild_scalar = array.__reduce__()[0], array[0].__reduce__()[0]
    numbers = (np.int64, np.float32, np.float64)
    kinds = [type(np.dtype(number)) for number in numbers]
    return [rebuild_array, rebuild_scalar, np.ndarray, np.dtype, *kinds]
