"""Sequence tagging for models with batch norms."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import BaseWrapperDataset
from fairseq.tasks import register_task
from torch import Tensor

from rbn_fairseq.callbacks.base import WithCallbacks, with_options
from rbn_fairseq.measuring.adapters import EncoderOnly
from rbn_fairseq.tasks.callbacks import CALLBACKS
from rbn_fairseq.tasks.labelled_text import LabelledTextConfig, LabelledTextTask
from rbn_fairseq.tasks.repairs import FairseqRepairs

__all__ = ["SequenceTaggingRBNTask"]

logger = logging.getLogger(__name__)


class _Cut(BaseWrapperDataset):
    """The first tokens of each sequence, at most ``longest``, with or without ``</s>`` behind.

    Args:
        sequences: that end with ``</s>``.
        longest: number of tokens, ``</s>`` not among them.
        end: whether to keep ``</s>``.
    """

    def __init__(self, sequences: Any, longest: int, end: bool) -> None:
        super().__init__(sequences)
        self._longest, self._end = longest, end

    def __getitem__(self, index: int) -> Tensor:
        """Return a sequence."""
        whole: Tensor = self.dataset[index]
        tokens = whole[:-1][: self._longest]
        return torch.cat([tokens, whole[-1:]]) if self._end else tokens

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each sequence, as it is returned."""
        tokens = np.minimum(np.asarray(self.dataset.sizes) - 1, self._longest)
        sizes: npt.NDArray[np.int64] = tokens + int(self._end)
        return sizes


@register_task("sequence_tagging_rbn", dataclass=with_options(LabelledTextConfig, CALLBACKS))
class SequenceTaggingRBNTask(WithCallbacks, FairseqRepairs, LabelledTextTask):
    """Texts with a tag for each token, with the callbacks for batch statistics and the monitors."""

    callbacks = CALLBACKS
    adapter = EncoderOnly()

    def prepare(self, split: str, text: Any, labels: Any) -> tuple[Any, Any]:
        """Return texts, which end with ``</s>``, and tags, which do not.

        A text that is too long is cut off behind, and its tags with it; a warning tells how many.

        Raises:
            ValueError: if a text has no token, or not as many tags as tokens.
        """
        longest = self.cfg.max_source_positions - 1
        self._check(split, text, labels, longest)
        return _Cut(text, longest, end=True), _Cut(labels, longest, end=False)

    def _check(self, split: str, text: Any, labels: Any, longest: int) -> None:
        tokens, tags = (np.asarray(side.sizes) - 1 for side in (text, labels))
        wrong = np.flatnonzero((tokens != tags) | (tokens == 0))
        if len(wrong):
            first = wrong[0]
            raise ValueError(
                f"`{split}` in {self.cfg.data}: text {first + 1} has {tokens[first]} tokens and "
                f"{tags[first]} tags, but must have a tag for each token, and one token at least. "
                "`rbn prepare tagging` makes such data."
            )
        long = int((tokens > longest).sum())
        if long:
            logger.warning(
                f"{split}: {long} texts have more than {longest} tokens, and what is behind those "
                "is cut off, which no score counts. Give --max-source-positions "
                f"{tokens.max() + 1} to keep all."
            )
