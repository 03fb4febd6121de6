"""Weight normalisation of linear layers, by torch's parametrisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

__all__ = ["WEIGHT_NORMS", "normalise_weights"]

WEIGHT_NORMS = ("none", "wn", "cwn")


class _CentredWeightNorm(nn.Module):
    """``w = g (v - mean v) / ||v - mean v||`` for each row v of the weight: one output."""

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        centred = v - v.mean(1, keepdim=True)
        return g * F.normalize(centred)  # 0 where all of a row are equal

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        centred = weight - weight.mean(1, keepdim=True)
        return torch.linalg.vector_norm(centred, dim=1, keepdim=True), weight


def normalise_weights(module: nn.Module, kind: str) -> None:
    """Parametrise the weight of every linear layer in ``module``, row by row, in place.

    ``wn``: ``w = g v / ||v||`` (Salimans and Kingma, 2016, Weight Normalization, Eq. 2), which
    leaves the first weights as they are. ``cwn``: the same with the mean of v taken off (Huang et
    al., 2017, Centered Weight Normalization), which centres them. ``none``: nothing.

    Args:
        module: where the linear layers are.
        kind: one of ``WEIGHT_NORMS``.
    """
    for part in list(module.modules()):
        if isinstance(part, nn.Linear) and kind == "wn":
            parametrizations.weight_norm(part)
        elif isinstance(part, nn.Linear) and kind == "cwn":
            parametrize.register_parametrization(part, "weight", _CentredWeightNorm())
