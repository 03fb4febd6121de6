"""Base of the tasks whose data are texts with labels."""

import os
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Optional

from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import load_langpair_dataset
from fairseq.utils import split_paths

from rbn_fairseq.measuring.adapters import LABEL, TEXT
from rbn_fairseq.norms.options import option

__all__ = ["LabelledTextConfig", "LabelledTextTask"]


@dataclass
class LabelledTextConfig(FairseqDataclass):
    """Options of the data."""

    data: Optional[str] = option(
        None, "data directory that `rbn prepare` filled; of several, joined by `:`, one an epoch"
    )
    max_source_positions: int = option(1024, "tokens of a text; what is behind them is cut off")


class LabelledTextTask(FairseqTask):
    """Texts and their labels: for fairseq, pairs of the languages ``text`` and ``label``.

    Batches are of texts of like length, unless --length-mixing says otherwise (``random``:
    shuffled).
    """

    def __init__(self, cfg: LabelledTextConfig, words: Dictionary, labels: Dictionary) -> None:
        super().__init__(cfg)
        self._words, self._labels = words, labels

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "LabelledTextTask":
        """Load the dictionaries."""
        first = split_paths(cfg.data)[0]
        paths = (os.path.join(first, f"dict.{side}.txt") for side in (TEXT, LABEL))
        return cls(cfg, *map(Dictionary.load, paths))

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a part of the data, padded behind, as :meth:`prepare` leaves it.

        Of several directories, each epoch of a training has one, and other parts are the first's.

        Raises:
            FileNotFoundError: if there is no such part.
            ValueError: if there are no labels, or they are not as the task wants them.
        """
        # Whole texts: of those that fairseq has cut, it takes the sizes of all for one token more
        # than they have.
        paths = split_paths(self.cfg.data)
        pairs = load_langpair_dataset(
            paths[(epoch - 1) % len(paths)],
            split,
            TEXT,
            self._words,
            LABEL,
            self._labels,
            combine=combine,
            dataset_impl=None,
            upsample_primary=1,
            left_pad_source=False,
            left_pad_target=False,
            max_source_positions=self.cfg.max_source_positions,
            max_target_positions=self.cfg.max_source_positions,
        )
        if pairs.tgt is None:
            raise ValueError(
                f"`{split}` in {self.cfg.data} has texts and no labels, by which they are trained "
                "on and scored. `rbn prepare` makes both."
            )
        text, labels = self.prepare(split, pairs.src, pairs.tgt)
        self.datasets[split] = LanguagePairDataset(
            text,
            text.sizes,
            self._words,
            labels,
            labels.sizes,
            self._labels,
            left_pad_source=False,
            left_pad_target=False,
            input_feeding=False,
        )

    def prepare(self, split: str, text: Any, labels: Any) -> tuple[Any, Any]:
        """Return texts and labels as the task trains on them; those given end with ``</s>``."""
        raise NotImplementedError

    def max_positions(self) -> tuple[int, int]:
        """Return the length of the longest text, and the largest number of its labels."""
        return self.cfg.max_source_positions, self.cfg.max_source_positions

    source_dictionary = property(attrgetter("_words"))
    target_dictionary = property(attrgetter("_labels"))  # behind fairseq's special types
