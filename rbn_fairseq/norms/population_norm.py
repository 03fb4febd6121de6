"""The base class of norms with running statistics."""

from typing import Any, ClassVar, Optional, Self

import torch
from torch import Tensor

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.moments import Moments
from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.normalise import multiply_add
from rbn_fairseq.norms.options import NormOptions
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.population import RunningStatistics
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, ValidTokens, on_rows

__all__ = ["PopulationNorm"]


class PopulationNorm(AffineNorm):
    """A norm whose training uses the batch, and whose evaluation uses running statistics.

    Evaluation is one multiply-add per element, by a scale and shift that every call computes.

    A subclass has ``_train(rows, layout)``, from rows ``(N, C)`` of real tokens and where the
    sentences lie in them (``None`` where that is not known), and ``affine_map()``.

    Args:
        channels: number of channels C.
        options: its parameters; ``None`` = the defaults.
        sync: use the statistics of all processes together (counts may differ).
        population: the running statistics.

    Attributes:
        population, sync: as given.
        by_length: whether the statistics are by sentence length, so that evaluation, too, asks
            which sentence a row is of.
        repeatable: whether a forward in training gives the same when it is repeated with frozen
            statistics that have moved.
        schedule: names of the options that say at which updates the norm's schedule ends.
        must_end: whether evaluation is only right behind that end, so that a training which does
            not reach it is refused.
    """

    repeatable: bool = False
    schedule: ClassVar[tuple[str, ...]] = ()
    must_end: ClassVar[bool] = False

    population: RunningStatistics
    _update = 0

    def __init__(
        self,
        channels: int,
        options: Optional[NormOptions],
        sync: bool,
        population: RunningStatistics,
    ) -> None:
        super().__init__(channels, options)
        self.sync = sync
        self.population = population
        self.by_length = population.by_length  # a look at a submodule takes long

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build the norm of a place, which tells whether processes share statistics, too."""
        return cls(place.channels, options, place.sync)  # type: ignore[call-arg]

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x``; same shape and dtype out.

        Args:
            x: rows ``(N, C)`` of real tokens; or with padding ``(T, B, C)`` or ``(..., C)``.
            tokens: the layout of the rows; or which of ``x``'s positions are real tokens. ``None``
                = all.

        Raises:
            ValueError: if ``tokens`` describes another shape than ``x``'s.
        """
        if self.training:
            if torch.compiler.is_compiling():
                # What moves statistics and is recorded breaks graphs, and not all survive it.
                from rbn_fairseq.norms.uncompiled import uncompiled

                return uncompiled(on_rows, self._train, x, tokens, self.by_length)
            # Measurements ask for sentences' lengths, which are known without padding, too.
            measured = isinstance(tokens, ValidTokens) and scope.moment_recorders.get() != ()
            return on_rows(self._train, x, tokens, self.by_length or measured)
        if self.by_length:
            return on_rows(self._evaluate_by_length, x, tokens, by_sentence=True)
        if tokens is not None:
            tokens.check(x)
        return multiply_add(x, *self.affine_map())

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift, each ``(C,)``: evaluation is ``x * scale + shift``."""
        raise NotImplementedError

    def set_num_updates(self, num_updates: int) -> None:
        """Take the number of updates so far; fairseq calls this before every training step."""
        self._update = num_updates

    def _record(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        lengths = None if layout is None else layout.lengths
        for recorder in scope.moment_recorders.get():
            recorder.append(scope.Record(self, batch, lengths))

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{super().extra_repr()}, sync={self.sync}"

    def _train(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        raise NotImplementedError

    def _evaluate_by_length(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        raise NotImplementedError
