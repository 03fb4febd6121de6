"""Batches that norms are timed on: which positions of each are padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor

from rbn_fairseq.bench.training import make_trainer
from rbn_fairseq.tasks.batches import collate, sample_batches

__all__ = ["Case", "data_cases", "fixed_case", "name_of"]

_LENGTH = 32  # positions of a sentence in a made-up batch, about those of a real one
_SMALL = "--arch rbn_transformer_tiny --optimizer adam".split()


@dataclass(frozen=True)
class Case:
    """Batches, by their padding.

    Attributes:
        name: of the case.
        paddings: a mask ``(B, T)`` for each batch, True = padding.
    """

    name: str
    paddings: Sequence[Tensor]

    def batches(self, device: str) -> Iterator[tuple[int, int, Optional[Tensor]]]:
        """Yield T, B and what the model gives its norms: the mask, or None without padding."""
        for padding in self.paddings:
            size, length = padding.shape
            yield length, size, padding.to(device) if padding.any() else None


def fixed_case(tokens: int, channels: int, pads: int = 0) -> Case:
    """Return one batch of ``tokens`` positions, ``pads`` percent of which are padding.

    Sentences have 32 positions; their padding grows evenly from none to twice the mean.

    Raises:
        ValueError: if there is no whole number of sentences, or less than half is real.
    """
    if tokens % _LENGTH:
        raise ValueError(f"--tokens must be multiples of {_LENGTH}, but one is {tokens}.")
    if pads > 50:
        raise ValueError(f"--pads are percent of the positions, at most 50, but one is {pads}.")
    size = tokens // _LENGTH
    share = (torch.arange(size) + 0.5) / size  # (B,)
    padded = (2 * pads / 100 * _LENGTH * share).round().clamp(max=_LENGTH - 1)  # (B,)
    padding = torch.arange(_LENGTH) >= _LENGTH - padded.unsqueeze(1)  # (B, T)
    return Case(f"pads-{pads}/{tokens}x{channels}", [padding])


def name_of(data: Path) -> str:
    """Return what cases of a data directory are called: its name, or that around a ``bin``."""
    data = data.resolve()
    return data.parent.name if data.name in ("bin", "data-bin") else data.name


def data_cases(data: str, name: str, max_tokens: int, batches: int, seed: int) -> list[Case]:
    """Return batches of training data as fairseq makes them, source and target side.

    Args:
        data: directory that fairseq-preprocess filled.
        name: of the data, for the cases.
        max_tokens: fairseq's limit for a batch, in tokens of either side.
        batches: how many, drawn uniformly from an epoch; 0 = all.
        seed: of the draw.
    """
    trainer: Any = make_trainer(data, [*_SMALL, "--max-tokens", str(max_tokens)], "cpu")
    iterator = trainer.get_train_iterator(epoch=1)
    dataset = trainer.task.dataset(trainer.cfg.dataset.train_subset)
    drawn = sample_batches(iterator, batches, seed)
    sides: dict[str, list[Tensor]] = {"source": [], "target": []}
    for sample in collate(dataset, drawn, trainer.model):
        inputs = sample["net_input"]
        sides["source"].append(inputs["src_tokens"].eq(dataset.src_dict.pad()))
        sides["target"].append(inputs["prev_output_tokens"].eq(dataset.tgt_dict.pad()))
    return [Case(f"{name}-{side}", paddings) for side, paddings in sides.items()]
