"""Callbacks of a training: one class for each concern, run in a fixed order."""

import fairseq  # noqa: F401 - which registers this and its sister packages

from rbn_fairseq.callbacks.base import Callback, Training, WithCallbacks, with_options

__all__ = ["Callback", "Training", "WithCallbacks", "with_options"]
