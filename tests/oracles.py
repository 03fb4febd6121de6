"""What tests compare with: the definitions, written out without anything of the package."""

import torch
from torch import Tensor


def real_tokens(length: int, lengths: list[int], left_pad: bool = False) -> Tensor:
    """Mask ``(T, B)``, True = real, of sentences of these lengths padded to ``length``."""
    valid = torch.arange(length).unsqueeze(1) < torch.tensor(lengths)
    return valid.flip(0) if left_pad else valid


def std(var: Tensor, eps: float, eps_mode: str) -> Tensor:
    return torch.sqrt(var + eps if eps_mode == "add" else torch.maximum(var, var.new_tensor(eps)))


def moments(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of ``tokens: (n, C)``."""
    mean = tokens.sum(0) / len(tokens)
    return mean, ((tokens - mean) ** 2).sum(0) / len(tokens)


def batch_norm(
    tokens: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, eps_mode: str = "add"
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised ``tokens: (n, C)``, their mean and their variance; autograd does the rest."""
    mean, var = moments(tokens)
    return (tokens - mean) / std(var, eps, eps_mode) * weight + bias, mean, var
