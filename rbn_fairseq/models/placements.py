"""Arrangements of norms and residuals beside Post- and Pre-Norm, and norms of heads."""

import math
from typing import Any, Optional

from torch import Tensor, nn

from rbn_fairseq.norms import Tokens

__all__ = [
    "HEADS", "OUTPUTS", "PROJECTIONS", "HeadNorm", "SubNorm", "deepnorm", "draw_small_weights",
    "draw_weights", "place_sub_norm", "sub_norm_gains",
]  # fmt: skip

#: Sites of norms of an attention's heads: of queries and keys, and of values as well.
HEADS = ("qk", "qkv")
#: A projection of an attention -> the sites that a norm behind it is of.
PROJECTIONS = {"q_proj": HEADS, "k_proj": HEADS, "v_proj": ("qkv",)}
#: A sublayer -> the layer's attribute for what stands behind it. In Peri-LN (Kim et al., 2025,
#: arXiv:2502.02732) that is a norm: ``x + norm_out(f(norm_in(x)))``.
OUTPUTS = {"self": "self_attn_out", "cross": "encoder_attn_out", "ffn": "ffn_out"}


def draw_weights(layer: nn.Module, gain: float) -> None:
    """Draw the weights of a layer's linear maps anew, in place.

    The feed-forward, value and output projections are Xavier-normal with the given gain, the query
    and key projections with gain 1; biases stay as they are. DeepNorm (arXiv:2203.00555) and
    sub-LN (arXiv:2210.06423) share this rule.
    """
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            fixed = name.endswith(("q_proj", "k_proj"))
            nn.init.xavier_normal_(module.weight, 1.0 if fixed else gain)


def draw_small_weights(layer: nn.Module) -> None:
    """Draw the weights of a layer's linear maps anew, in place, smaller ones in attentions.

    All four projections of an attention have variance ``2 / (5 C)``, what Xavier gives to a
    feed-forward network of 4 C hidden channels; that network is Xavier-normal. Biases stay as they
    are. Source: Nguyen and Salazar, 2019, Transformers without Tears, and the authors' code.
    """
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear) and "attn" in name:
            nn.init.normal_(module.weight, std=math.sqrt(2 / (5 * module.in_features)))
        elif isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)


def deepnorm(
    encoder_layers: int, decoder_layers: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return for an encoder of N and a decoder of M layers each one's alpha and beta.

    Alpha scales residuals, beta is the gain of first weights.

    Source: Wang et al., 2022, DeepNet (arXiv:2203.00555), for an encoder-decoder: encoder
    ``alpha = 0.81 (N^4 M)^(1/16)``, ``beta = 0.87 (N^4 M)^(-1/16)``; decoder ``alpha =
    (3 M)^(1/4)``, ``beta = (12 M)^(-1/4)``. A stack alone (the other has 0 layers): ``alpha =
    (2 N)^(1/4)``, ``beta = (8 N)^(-1/4)``.
    """
    n, m = encoder_layers, decoder_layers
    if not (n and m):
        alone = (2 * (n + m)) ** 0.25, (8 * (n + m)) ** -0.25
        return alone, alone
    depth = (n**4 * m) ** (1 / 16)
    return (0.81 * depth, 0.87 / depth), ((3 * m) ** 0.25, (12 * m) ** -0.25)


def sub_norm_gains(encoder_layers: int, decoder_layers: int) -> tuple[float, float]:
    """Return the gains of first weights for an encoder of N and a decoder of M layers.

    Source: Wang et al., 2022, Foundation Transformers (arXiv:2210.06423), for an
    encoder-decoder: encoder ``gamma = sqrt(ln(3 M) ln(2 N) / 3)``, decoder
    ``gamma = sqrt(ln(3 M))``. A stack alone (the other has 0 layers): ``gamma = sqrt(ln(2 N))``.
    """
    if not (encoder_layers and decoder_layers):
        alone = math.sqrt(math.log(2 * (encoder_layers + decoder_layers)))
        return alone, alone
    decoder = math.log(3 * decoder_layers)
    return math.sqrt(decoder * math.log(2 * encoder_layers) / 3), math.sqrt(decoder)


class SubNorm(nn.Module):
    """A norm and the output projection behind it: the end of an attention in sub-LN."""

    def __init__(self, norm: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.projection = projection

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Project the normalised heads ``x: (N, C)`` or, in generation, ``(1, B, C)``."""
        return self.projection(self.norm(x, tokens))


def place_sub_norm(layer: Any, site: str, norm: nn.Module) -> None:
    """Put the second norm of a sublayer into a layer built by fairseq.

    Args:
        layer: encoder or decoder layer.
        site: the sublayer, ``self``, ``cross`` or ``ffn``.
        norm: it normalises C channels in an attention, those of the hidden layer in ``ffn``.
    """
    if site == "ffn":
        layer.fc2_norm = norm
        return
    attention = layer.self_attn if site == "self" else layer.encoder_attn
    setattr(layer, OUTPUTS[site], SubNorm(norm, attention.out_proj))
    # Attention leaves the joined heads as they are. Unless this check is skipped, fairseq's, which
    # generation takes, calls torch's function, which reads out_proj.weight and not out_proj.
    attention.out_proj = nn.Identity()
    attention.skip_embed_dim_check = True


class HeadNorm(nn.Linear):
    """A projection of an attention and the norm of its heads behind it.

    The norm is over the channels of a head, and all heads share it. What fairseq caches in
    generation is normalised.

    Args:
        projection: to queries, keys or values; its parameters are taken over.
        norm: of ``C / heads`` channels; it is given no layout.
        heads: number of heads.
    """

    def __init__(self, projection: nn.Linear, norm: nn.Module, heads: int) -> None:
        nn.Module.__init__(self)  # Linear's own draws weights
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight, self.bias = projection.weight, projection.bias
        self.norm, self.heads = norm, heads

    def forward(self, x: Tensor) -> Tensor:
        """Project ``x: (..., C)`` and normalise each head."""
        y = super().forward(x)
        heads: Tensor = self.norm(y.unflatten(-1, (self.heads, -1)))  # (..., heads, C / heads)
        return heads.flatten(-2).to(y.dtype)  # under autocast norms are in fp32
