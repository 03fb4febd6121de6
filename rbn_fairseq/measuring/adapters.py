"""Adapters to kinds of tasks: their data, sentence lengths, and how to run their norms.

A task has one of these as its class attribute ``adapter``; callbacks and measurements ask it
instead of the task, its data sets and its model.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Optional

import numpy as np
import numpy.typing as npt
from fairseq.data import AppendTokenDataset, ConcatDataset, Dictionary, TruncateDataset

from rbn_fairseq.measuring.data_bin import WAY_OUT, check_data
from rbn_fairseq.norms import has_population_norm

__all__ = ["LABEL", "TEXT", "DecoderOnly", "EncoderDecoder", "EncoderOnly", "TaskAdapter"]

#: Languages, for fairseq, of texts and their labels.
TEXT, LABEL = "text", "label"

Lengths = npt.NDArray[np.int64]


class TaskAdapter(ABC):
    """A kind of task.

    Attributes:
        source_sizes: the attribute of data with the number of input tokens of each sentence.
        target_sizes: that with the number of target tokens; data without targets have ``None``.
        computes_targets: whether targets are tokens that a model computes besides.
    """

    source_sizes: ClassVar[str]
    target_sizes: ClassVar[str]
    computes_targets: ClassVar[bool] = False

    @abstractmethod
    def check_data(self, cfg: Any, way_out: str = WAY_OUT) -> None:
        """Refuse a data directory that fairseq-preprocess did not fill for this kind of task.

        Raises:
            ValueError: naming the directory and what is missing; and the ``way_out``.
        """

    @abstractmethod
    def dictionaries(self, task: Any) -> list[Dictionary]:
        """Return the dictionaries that a checkpoint's embeddings belong to."""

    @abstractmethod
    def run_norms(self, model: Any, sample: dict[str, Any]) -> None:
        """Run the part of a model that has running statistics; never the output projection."""

    def source_lengths(self, dataset: Any) -> Optional[Lengths]:
        """Return the input tokens of each sentence, by index; ``None`` if the data has no sizes."""
        return getattr(dataset, self.source_sizes, None)

    def target_lengths(self, dataset: Any) -> Optional[Lengths]:
        """Return the target tokens of each sentence, by index; ``None`` if there are no targets."""
        return getattr(dataset, self.target_sizes, None)

    def check_targets(self, datasets: Mapping[str, Any]) -> None:
        """Refuse parts of the data without targets; data of other kinds do not say.

        Raises:
            ValueError: if a part has none, which fairseq takes for text to translate.
        """
        for part, dataset in datasets.items():
            if getattr(dataset, self.target_sizes, ()) is None:
                raise ValueError(
                    f"The data's part `{part}` has one side alone: `rbn doctor --data DATA-BIN` "
                    "tells which. Make it with fairseq-preprocess."
                )

    def tokens(self, dataset: Any) -> Lengths:
        """Return the real tokens of each sentence, by index: all that a model computes for it."""
        both = self.source_lengths(dataset), self.target_lengths(dataset)
        parts = both if self.computes_targets else both[:1]
        total: Lengths = np.sum([part for part in parts if part is not None], axis=0)
        return total


def _true_sizes(source: Any, sizes: Lengths) -> Lengths:
    """Return the lengths of sentences, of which fairseq counts those that it may cut with 1 more.

    Its StripTokenDataset has the sizes from before the end of a sentence was taken off.
    """
    if isinstance(source, ConcatDataset):
        parts = [
            np.tile(_true_sizes(part, part.sizes), ratio)
            for part, ratio in zip(source.datasets, source.sample_ratios, strict=True)
        ]
        return np.concatenate(parts)
    cut = source.dataset if isinstance(source, AppendTokenDataset) else None
    if not isinstance(cut, TruncateDataset):
        return sizes
    true: Lengths = np.minimum(cut.dataset.sizes, cut.truncation_length + 1)
    return true


class EncoderDecoder(TaskAdapter):
    """Translation: pairs of sentences, an encoder and a decoder."""

    source_sizes, target_sizes = "src_sizes", "tgt_sizes"
    computes_targets = True

    def check_data(self, cfg: Any, way_out: str = WAY_OUT) -> None:
        """Refuse a directory without the dictionaries of both languages."""
        languages = [getattr(cfg, f"{side}_lang", None) for side in ("source", "target")]
        check_data(cfg.data, [f"dict.{language or '*'}.txt" for language in languages], way_out)

    def dictionaries(self, task: Any) -> list[Dictionary]:
        """Return the source and the target dictionary."""
        both = task.source_dictionary, task.target_dictionary
        return [dictionary for dictionary in both if dictionary is not None]

    def source_lengths(self, dataset: Any) -> Optional[Lengths]:
        """As of every task; with ``--truncate-source`` without the token that fairseq adds."""
        sizes = super().source_lengths(dataset)
        return sizes if sizes is None else _true_sizes(getattr(dataset, "src", None), sizes)

    def run_norms(self, model: Any, sample: dict[str, Any]) -> None:
        """Run the encoder, and the decoder if it has running statistics."""
        inputs = sample["net_input"]
        if has_population_norm(model.decoder):
            model(**inputs, features_only=True)
        else:
            model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])


class EncoderOnly(EncoderDecoder):
    """Texts with labels, for fairseq pairs of :data:`TEXT` and :data:`LABEL`: an encoder."""

    computes_targets = False  # a label is no token that a model computes

    def check_data(self, cfg: Any, way_out: str = WAY_OUT) -> None:
        """Refuse a directory without the dictionaries of words and labels."""
        check_data(cfg.data, [f"dict.{TEXT}.txt", f"dict.{LABEL}.txt"], way_out)

    def run_norms(self, model: Any, sample: dict[str, Any]) -> None:
        """Run the encoder."""
        model.encode(sample["net_input"]["src_tokens"])


class DecoderOnly(TaskAdapter):
    """Language modelling: blocks of one text, whose targets are their own tokens."""

    source_sizes = target_sizes = "sizes"

    def check_data(self, cfg: Any, way_out: str = WAY_OUT) -> None:
        """Refuse a directory without ``dict.txt``."""
        check_data(cfg.data, ["dict.txt"], way_out)

    def dictionaries(self, task: Any) -> list[Dictionary]:
        """Return the dictionary."""
        return [task.dictionary]

    def source_lengths(self, dataset: Any) -> Optional[Lengths]:
        """As of every task; with ``--add-bos-token`` with the one that fairseq puts before each."""
        sizes = super().source_lengths(dataset)
        return sizes if sizes is None else sizes + bool(getattr(dataset, "add_bos_token", False))

    target_lengths = source_lengths

    def run_norms(self, model: Any, sample: dict[str, Any]) -> None:
        """Run the decoder."""
        model(**sample["net_input"], features_only=True)
