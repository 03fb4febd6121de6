"""What TID would be if every token went to a random batch: references for a layer's TID."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.diagnostics.batch_norms import TorchBatchNorm, batch_norms
from rbn_fairseq.diagnostics.collect import LayerMoments, measuring, with_norm
from rbn_fairseq.diagnostics.tid import TID
from rbn_fairseq.norms import Tokens, ValidTokens

__all__ = ["collect_permuted_moments", "independent_tid"]


class _VirtualBatches:
    """Sums, in fp64, over the tokens that one layer's activations deal to virtual batches."""

    def __init__(self, number: int, generator: torch.Generator) -> None:
        self._number, self._generator = number, generator
        self._shift: Optional[Tensor] = None  # (C,)

    def deal(self, x: Tensor, tokens: Optional[Tokens] = None) -> None:
        """Give every real token of ``x: (..., C)`` to a batch; called as the norm is."""
        valid = tokens.valid if isinstance(tokens, ValidTokens) else None
        rows = x.reshape(-1, x.shape[-1]) if valid is None else x[valid]  # (tokens, C)
        rows = rows.double()
        if len(rows) == 0:
            return
        if self._shift is None:
            # Any point near the tokens: far from 0, sums of squares would lose the variance.
            self._shift = rows.mean(0)
            self._sums, self._squares = rows.new_zeros(2, self._number, rows.shape[1])
            self._count = rows.new_zeros(self._number)
        rows = rows - self._shift
        # On the CPU, so that a seed means the same tokens on every device.
        dealt = torch.randint(self._number, (len(rows),), generator=self._generator)
        dealt = dealt.to(rows.device)
        self._sums.index_add_(0, dealt, rows)
        self._squares.index_add_(0, dealt, rows.square_())
        self._count += torch.bincount(dealt, minlength=self._number)

    def moments(self) -> Optional[LayerMoments]:
        """Return the moments of the batches that got tokens; ``None`` where none did."""
        if self._shift is None:
            return None
        some = self._count > 0
        count = self._count[some]
        mean = self._sums[some] / count.unsqueeze(1)
        var = self._squares[some] / count.unsqueeze(1) - mean.square()
        return LayerMoments((mean + self._shift).cpu(), var.clamp(min=0).cpu(), count.cpu())


def collect_permuted_moments(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any],
    number: int,
    seed: int,
    dropout: bool = False,
    norms: Optional[Mapping[str, nn.Module]] = None,
) -> dict[str, LayerMoments]:
    """Run ``forward(model, batch)`` and return the statistics of batches of shuffled tokens.

    At every norm each real token's activation goes to one of ``number`` virtual batches,
    uniformly and independently of all else, so that what tokens of a sentence, or sentences of
    like length, have in common is gone. The norms themselves run on the statistics of the batches
    that come in, as in training, and nothing moves, as in
    :func:`~rbn_fairseq.diagnostics.collect_moments`.

    One pass. Memory: 16 bytes per virtual batch, layer and channel, and one layer's activations
    in fp64 twice.

    Args:
        model: any module with batch norms, this package's or torch's own.
        batches: what ``forward`` takes.
        forward: runs the model on a batch.
        number: of virtual batches; with the number of batches they are as large on average.
        seed: of the deal. It has a generator of its own.
        dropout: leave dropout on.
        norms: by name, those to report; ``None`` = all batch norms.

    Returns:
        Moments by layer name. Virtual batches without a token are left out, and so are layers
        without.

    Raises:
        ValueError: if ``number`` is not positive.
    """
    if number < 1:
        raise ValueError(f"`number` of virtual batches must be at least 1, but is {number}.")
    generator = torch.Generator().manual_seed(seed)
    norms = batch_norms(model) if norms is None else norms
    layers = {name: _VirtualBatches(number, generator) for name in norms}

    def hook(layer: _VirtualBatches, norm: nn.Module, args: Any, kwargs: Any) -> None:
        if isinstance(norm, TorchBatchNorm):
            layer.deal(args[0].movedim(1, -1))  # (N, C, ...) -> (N, ..., C)
        else:
            layer.deal(*args, **kwargs)

    with ExitStack() as stack:
        for name, norm in norms.items():
            handle = norm.register_forward_pre_hook(partial(hook, layers[name]), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(measuring(model, dropout))
        for batch in batches:
            forward(model, batch)
    found = {name: layer.moments() for name, layer in layers.items()}
    return {
        name: with_norm(moments, norms[name])
        for name, moments in found.items()
        if moments is not None
    }


def independent_tid(counts: Tensor) -> TID:
    """Return about what TID would be, were tokens independent and normally distributed.

    A batch of n tokens then has a mean ``sigma / sqrt(n)`` and a standard deviation
    ``sigma / sqrt(2 n)`` away from the population's, as root mean squares per channel.

    Args:
        counts: ``(batches,)``, tokens of each batch.
    """
    counts = counts.double()
    return TID(counts.rsqrt().mean().item(), (2 * counts).rsqrt().mean().item())
