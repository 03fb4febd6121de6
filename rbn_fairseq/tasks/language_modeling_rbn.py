"""fairseq's language modelling task for models with batch norms."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from rbn_fairseq.callbacks.base import WithCallbacks, with_options
from rbn_fairseq.measuring.adapters import DecoderOnly
from rbn_fairseq.tasks.callbacks import CALLBACKS
from rbn_fairseq.tasks.repairs import FairseqRepairs

__all__ = ["LanguageModelingRBNTask"]


def _numpy_1() -> Any:
    """Give numpy 2 the one name of numpy 1 by which fairseq cuts a text into sentences."""
    return mock.patch.object(np, "compat", SimpleNamespace(long=int), create=True)


@register_task("language_modeling_rbn", dataclass=with_options(LanguageModelingConfig, CALLBACKS))
class LanguageModelingRBNTask(WithCallbacks, FairseqRepairs, LanguageModelingTask):
    """fairseq's ``language_modeling`` with the callbacks for batch statistics and the monitors."""

    callbacks = CALLBACKS
    adapter = DecoderOnly()

    def load_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """Load a part of the data."""
        with _numpy_1():
            return super().load_dataset(*args, **kwargs)

    def build_dataset_for_inference(self, *args: Any, **kwargs: Any) -> Any:
        """Make data of lines to continue."""
        with _numpy_1():
            return super().build_dataset_for_inference(*args, **kwargs)
