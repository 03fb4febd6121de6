"""First weights whose size goes by the model's depth."""

from torch import nn

__all__ = ["draw_weights"]

_GAINS = {"q_proj": 1.0, "k_proj": 1.0}


def draw_weights(layer: nn.Module, gain: float) -> None:
    """Draw the weights of a layer's linear maps anew, in place.

    The feed-forward, value and output projections are Xavier-normal with the given gain, the query
    and key projections with gain 1; biases stay as they are. DeepNorm (arXiv:2203.00555) and
    sub-LN (arXiv:2210.06423) share this rule.
    """
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight, _GAINS.get(name.rpartition(".")[2], gain))
