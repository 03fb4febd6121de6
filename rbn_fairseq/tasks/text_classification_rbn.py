"""Text classification for models with batch norms."""

from typing import Any

import numpy as np
from fairseq.data import BaseWrapperDataset, PrependTokenDataset, TruncateDataset
from fairseq.tasks import register_task
from torch import Tensor

from rbn_fairseq.callbacks.base import WithCallbacks, with_options
from rbn_fairseq.measuring.adapters import EncoderOnly
from rbn_fairseq.tasks.callbacks import CALLBACKS
from rbn_fairseq.tasks.labelled_text import LabelledTextConfig, LabelledTextTask
from rbn_fairseq.tasks.repairs import FairseqRepairs

__all__ = ["TextClassificationRBNTask"]


class _Labels(BaseWrapperDataset):
    """The label of each text, without ``</s>``."""

    def __init__(self, dataset: Any, special: int, where: str) -> None:
        super().__init__(dataset)
        self._special, self._where = special, where
        other = np.flatnonzero(np.asarray(dataset.sizes) != 2)
        if len(other):
            raise ValueError(
                f"{where}: text {other[0] + 1} has {dataset.sizes[other[0]] - 1} labels, but must "
                "have one, without blanks. `rbn prepare classification` makes such data."
            )

    def __getitem__(self, index: int) -> Tensor:
        label: Tensor = self.dataset[index][:1]
        if label < self._special:
            raise ValueError(
                f"{self._where}: the label of text {index + 1} is not in the dictionary, which is "
                "made of the training data. Take the text out, or add such texts to those."
            )
        return label

    @property
    def sizes(self) -> Any:
        return np.ones(len(self.dataset), dtype=np.int64)


@register_task("text_classification_rbn", dataclass=with_options(LabelledTextConfig, CALLBACKS))
class TextClassificationRBNTask(WithCallbacks, FairseqRepairs, LabelledTextTask):
    """Classification of texts, ``<s>`` in front of each, with the callbacks and the monitors."""

    callbacks = CALLBACKS
    adapter = EncoderOnly()

    def prepare(self, split: str, text: Any, labels: Any) -> tuple[Any, Any]:
        """Return texts with ``<s>`` in front, and a label for each.

        A text that is too long is cut off behind; it is the one that does not end with ``</s>``.

        Raises:
            ValueError: if a text has not one label.
        """
        cut = TruncateDataset(text, self.cfg.max_source_positions - 1)
        where = f"`{split}` in {self.cfg.data}"
        classes = _Labels(labels, self.target_dictionary.nspecial, where)
        return PrependTokenDataset(cut, self.source_dictionary.bos()), classes
