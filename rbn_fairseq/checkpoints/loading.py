"""Safe loading: torch's own check stays on, and the types that fairseq writes are allowed."""

import argparse
import collections
import typing

import torch
from fairseq.distributed.utils import _TensorPlaceholder
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from rbn_fairseq.checkpoints.arrays import SAFE_ARRAYS

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
            *SAFE_ARRAYS,
        ]
    )
