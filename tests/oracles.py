"""What tests compare with: the definitions, written out without anything of the package."""

import torch
from torch import Tensor


def real_tokens(length: int, lengths: list[int], left_pad: bool = False) -> Tensor:
    """Mask ``(T, B)``, True = real, of sentences of these lengths padded to ``length``."""
    valid = torch.arange(length).unsqueeze(1) < torch.tensor(lengths)
    return valid.flip(0) if left_pad else valid


#: Masks ``(T, B)`` of batches of all kinds.
MASKS = {
    "right padding": real_tokens(5, [3, 5, 1]),
    "left padding": real_tokens(5, [3, 5, 1], left_pad=True),
    "holes": torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 0, 1]]).bool(),
    "no padding": torch.ones(4, 3, dtype=torch.bool),
    "a sentence of padding": real_tokens(4, [2, 0, 4]),
    "a column of padding": real_tokens(5, [2, 4]),
    "no token": torch.zeros(3, 2, dtype=torch.bool),
    "one token": real_tokens(3, [0, 1]),
    "one position": torch.ones(1, 1, dtype=torch.bool),
    "no sentence": torch.zeros(4, 0, dtype=torch.bool),
    "no position": torch.zeros(0, 2, dtype=torch.bool),
}
#: Masks ``(T, B)`` that leave two real tokens at least, and numbers of channels.
SENTENCES = {
    "no padding": (real_tokens(5, [5, 5]), 4),
    "right padding": (real_tokens(6, [6, 2, 3]), 4),
    "left padding": (real_tokens(6, [6, 2, 3], left_pad=True), 4),
    "a sentence of padding": (real_tokens(4, [4, 0, 2]), 5),
    "a column of padding": (real_tokens(4, [3, 2]), 5),
    "holes": (torch.tensor([[1, 0], [0, 1], [1, 1], [1, 0], [0, 1]]).bool(), 3),
    "T = 1": (real_tokens(1, [1, 0, 1, 1]), 6),
    "C = 1": (real_tokens(4, [4, 3]), 1),
    "C = 513": (real_tokens(3, [3, 2]), 513),  # no multiple of any vector's width
}


def std(var: Tensor, eps: float, eps_mode: str) -> Tensor:
    return torch.sqrt(var + eps if eps_mode == "add" else torch.maximum(var, var.new_tensor(eps)))


def moments(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of ``tokens: (n, C)``."""
    mean = tokens.sum(0) / len(tokens)
    return mean, ((tokens - mean) ** 2).sum(0) / len(tokens)


def by_bin(x: Tensor, valid: Tensor, edges: list[float]) -> list[Tensor]:
    """The real tokens ``(n, C)`` of ``x: (T, B, C)`` by the bin of their sentence, in float64."""
    tokens: list[list[Tensor]] = [[] for _ in edges[1:]]
    for sentence, mask in zip(x.unbind(1), valid.unbind(1), strict=True):
        number = sum(int(mask.sum()) >= edge for edge in edges[1:-1])
        tokens[number] += sentence[mask].double().unbind()
    return [torch.stack(part) if part else x.new_zeros(0, x.shape[-1]) for part in tokens]


def batch_norm(
    tokens: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, eps_mode: str = "add"
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised ``tokens: (n, C)``, their mean and their variance; autograd does the rest."""
    mean, var = moments(tokens)
    return (tokens - mean) / std(var, eps, eps_mode) * weight + bias, mean, var
