"""Batches that norms are timed on: how long the sentences of each are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rbn_fairseq.norms import BatchLayout

__all__ = ["Case", "fixed_case"]

_LENGTH = 32  # tokens of a sentence in a made-up batch, about those of a real one


@dataclass(frozen=True)
class Case:
    """Batches, by the lengths of their sentences.

    Attributes:
        name: of the case.
        batches: the number of tokens of each sentence, in the order of the rows.
    """

    name: str
    batches: Sequence[Sequence[int]]

    def layouts(self, device: str) -> Iterator[BatchLayout]:
        """Yield where the sentences of each batch lie in its rows, as the model tells its norms."""
        for lengths in self.batches:
            yield BatchLayout(torch.tensor(lengths, device=device), list(lengths))


def fixed_case(tokens: int, channels: int) -> Case:
    """Return one batch of ``tokens`` real tokens, in sentences of 32.

    Raises:
        ValueError: if there is no whole number of sentences.
    """
    if tokens % _LENGTH:
        raise ValueError(f"--tokens must be multiples of {_LENGTH}, but one is {tokens}.")
    return Case(f"{tokens}x{channels}", [[_LENGTH] * (tokens // _LENGTH)])
