"""Batches that norms are timed on: which positions of each are padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rbn_fairseq.norms import BatchLayout, lay_out

__all__ = ["Case", "fixed_case"]

_LENGTH = 32  # positions of a sentence in a made-up batch, about those of a real one


@dataclass(frozen=True)
class Case:
    """Batches, by their padding.

    Attributes:
        name: of the case.
        paddings: a mask ``(B, T)`` for each batch, True = padding.
    """

    name: str
    paddings: Sequence[Tensor]

    @property
    def pads(self) -> float:
        """Percent of all positions that are padding."""
        return 100 * torch.cat([mask.flatten() for mask in self.paddings]).float().mean().item()

    def batches(self, device: str) -> Iterator[BatchLayout]:
        """Yield where the sentences of each batch lie in its rows, as the model tells its norms."""
        for padding in self.paddings:
            yield lay_out(padding.logical_not().to(device))[0]


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
