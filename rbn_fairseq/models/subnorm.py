"""Sub-LN: Pre-Norm with a second norm inside every sublayer and larger first weights, by depth."""

import math
from typing import Any, Optional

from torch import Tensor, nn

from rbn_fairseq.norms import Tokens

__all__ = ["SubNorm", "place_sub_norm", "sub_norm_gains"]

_ATTENTIONS = {"self": "self_attn", "cross": "encoder_attn"}  # site of a plan -> attribute


def sub_norm_gains(encoder_layers: int, decoder_layers: int) -> tuple[float, float]:
    """Return the gains of first weights for an encoder of N and a decoder of M layers.

    Source: Wang et al., 2022, Foundation Transformers (arXiv:2210.06423), for an
    encoder-decoder: encoder ``gamma = sqrt(ln(3 M) ln(2 N) / 3)``, decoder
    ``gamma = sqrt(ln(3 M))``.
    """
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
    attention = getattr(layer, _ATTENTIONS[site])
    setattr(layer, f"{_ATTENTIONS[site]}_out", SubNorm(norm, attention.out_proj))
    # Attention leaves the joined heads as they are. Unless this check is skipped, fairseq's, which
    # generation takes, calls torch's function, which reads out_proj.weight and not out_proj.
    attention.out_proj = nn.Identity()
    attention.skip_embed_dim_check = True
