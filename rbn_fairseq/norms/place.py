"""What a norm knows of the place it is built for."""

from dataclasses import dataclass

__all__ = ["NormPlace"]


@dataclass(frozen=True)
class NormPlace:
    """A place in a stack of layers.

    Attributes:
        channels: number of channels C.
        heads: number of attention heads of the stack; 1 where there are none.
        sync: whether norms with batch statistics share them over all processes.
    """

    channels: int
    heads: int = 1
    sync: bool = False
