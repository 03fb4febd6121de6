"""How norms are compared with their definitions, where autograd makes the backward."""

import copy
from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms import ValidTokens

# Shapes without padding; C = 1 where a norm can, C = 513 because no vector's width divides it.
SHAPES = [(5, 3, 6), (1, 1, 6), (7, 513), (4, 2, 1), (2, 1, 3, 4)]


def randomise(norm: nn.Module) -> nn.Module:
    """Give every parameter a value that a new norm does not have."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def run(
    function: Callable[..., Tensor], x: Tensor, parameters: list[Tensor], upstream: Tensor
) -> list[Tensor]:
    """Output, then the gradients of x and the parameters."""
    y = function()
    gradients = torch.autograd.grad(y, [x, *parameters], upstream, allow_unused=True)
    assert all(gradient is not None for gradient in gradients)
    return [y, *gradients]


def assert_agrees(
    norm: nn.Module,
    definition: Callable[..., Tensor],
    x: Tensor,
    tolerance: float,
    valid: Optional[Tensor] = None,
    upstream: Optional[Tensor] = None,
) -> None:
    """Compare output and gradients with those of ``definition(x, *parameters)`` in float64.

    ``tolerance`` is relative to the largest number of each tensor. With ``valid``, outputs at
    padding are not compared, and gradients there must be exactly zero.
    """
    upstream = torch.randn_like(x) if upstream is None else upstream
    real = torch.ones(x.shape[:-1], dtype=torch.bool) if valid is None else valid
    tokens = None if valid is None else ValidTokens(valid)
    ours = x.detach().requires_grad_()
    y, dx, *rest = run(lambda: norm(ours, tokens), ours, list(norm.parameters()), upstream)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)

    exact = x.detach().double().requires_grad_()
    weights = [p.detach().double().requires_grad_() for p in norm.parameters()]
    # Gradients that arrive at padding are not part of any definition.
    arriving = upstream.double().masked_fill(~real.unsqueeze(-1), 0)
    y2, dx2, *rest2 = run(lambda: definition(exact, *weights), exact, weights, arriving)
    for part, other in zip([y[real], dx[real], *rest], [y2[real], dx2[real], *rest2], strict=True):
        bound = tolerance * (1 + other.abs().max().item())
        torch.testing.assert_close(part.double(), other.detach(), rtol=0, atol=bound)
    assert torch.equal(dx[~real], torch.zeros_like(dx[~real]))


def assert_half_rounds_once(
    norm: nn.Module, x: Tensor, dtype: torch.dtype, cast: bool, valid: Optional[Tensor] = None
) -> None:
    """In half precision nothing is rounded but the results; ``cast``: the parameters are too."""
    half = copy.deepcopy(norm).to(dtype) if cast else copy.deepcopy(norm)
    full = copy.deepcopy(half).float()
    tokens = None if valid is None else ValidTokens(valid)
    x, upstream = x.to(dtype), torch.randn_like(x).to(dtype)
    results = []
    for part, convert in ((half, x.dtype), (full, torch.float32)):
        inputs = x.to(convert, copy=True).requires_grad_()
        results.append(
            run(
                lambda part=part, inputs=inputs: part(inputs, tokens),
                inputs,
                list(part.parameters()),
                upstream.to(convert),
            )
        )
    for rounded, exact in zip(*results, strict=True):
        # One rounding at the end, to half an ulp or half the smallest subnormal; and fp32's own,
        # which may sum in another order, for parameters that stay fp32 and next to a tie.
        info, size = torch.finfo(rounded.dtype), exact.abs().max().item()
        atol = info.smallest_normal * info.eps + 2e-6 * (1 + size)
        torch.testing.assert_close(rounded.float(), exact, rtol=info.eps / 2, atol=atol)
    assert results[0][0].dtype == results[0][1].dtype == dtype
    for buffer, exact in zip(half.buffers(), full.buffers(), strict=True):
        assert buffer.dtype == torch.float32
        torch.testing.assert_close(buffer, exact, rtol=1e-6, atol=1e-6)  # of the same inputs
