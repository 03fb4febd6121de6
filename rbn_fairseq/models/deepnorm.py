"""DeepNorm: Post-Norm with scaled residuals and smaller first weights, by depth."""

from typing import NamedTuple

from torch import Tensor

from rbn_fairseq.models.first_weights import draw_weights

__all__ = ["DeepNorm", "ScaledResidual", "deepnorm"]


class DeepNorm(NamedTuple):
    """Constants of one stack: ``alpha`` scales residuals, ``beta`` is the gain of first weights."""

    alpha: float
    beta: float


def deepnorm(encoder_layers: int, decoder_layers: int) -> tuple[DeepNorm, DeepNorm]:
    """Return the constants of an encoder of N and a decoder of M layers.

    Source: Wang et al., 2022, DeepNet (arXiv:2203.00555), for an encoder-decoder: encoder
    ``alpha = 0.81 (N^4 M)^(1/16)``, ``beta = 0.87 (N^4 M)^(-1/16)``; decoder ``alpha =
    (3 M)^(1/4)``, ``beta = (12 M)^(-1/4)``.
    """
    depth = (encoder_layers**4 * decoder_layers) ** (1 / 16)
    return (
        DeepNorm(0.81 * depth, 0.87 / depth),
        DeepNorm((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25),
    )


class ScaledResidual:
    """Mixin for a fairseq layer: the residual counts ``residual_scale`` times."""

    residual_scale = 1.0

    def residual_connection(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return ``residual_scale * residual + x``; fairseq's layers call this."""
        return residual + x if self.residual_scale == 1 else self.residual_scale * residual + x

    def use_deepnorm(self, constants: DeepNorm) -> None:
        """Scale the residuals by alpha, and draw the first weights anew with gain beta."""
        self.residual_scale = constants.alpha
        draw_weights(self, constants.beta)  # type: ignore[arg-type]
