"""Centred weights behind the norms that subtract no mean."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from rbn_fairseq.models.reading import readers_in_layer, readers_of_encoder
from rbn_fairseq.norms import Composition, MovingAverageBatchNorm

__all__ = ["centre_weights"]


class _Centred(nn.Module):
    """``w - mean w`` for each row of the weight, one output: a common offset of the inputs is 0."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight - weight.mean(1, keepdim=True)


def _norms(
    stack: Any, option: str, behind: list[nn.Linear]
) -> Iterator[tuple[str, nn.Module, list[nn.Linear]]]:
    """Yield every norm of a stack: its option, the norm, the linear layers that read its output.

    Args:
        stack: encoder or decoder.
        option: that plans its layers.
        behind: the linear layers that read the stack's own output.
    """
    layers = [stack.layers[index] for index in range(len(stack.layers))]  # not LayerDrop's choice
    norms, linear = zip(
        *(reads for layer in layers for reads in readers_in_layer(layer)), strict=True
    )
    if not layers[0].normalize_before:  # it is the next sublayer that reads a norm's output
        linear = (*linear[1:], behind)
    for norm, readers in zip(norms, linear, strict=True):
        yield option, norm, readers
    if stack.layer_norm is not None:
        yield f"{option}-final", stack.layer_norm, behind


def _centre(linear: nn.Linear) -> None:
    parts = linear.parametrizations.weight if parametrize.is_parametrized(linear, "weight") else []
    if not any(isinstance(part, _Centred) for part in parts):
        parametrize.register_parametrization(linear, "weight", _Centred())


def centre_weights(model: Any) -> None:
    """Centre, in place, the weights of the linear layers behind every ``mabn``.

    Moving average batch norm subtracts no mean; instead each row of the weights behind it has
    its mean subtracted (Yan et al., 2020, arXiv:2001.06838), by torch's parametrisation. In that
    paper's stacks of convolutions the layer behind one norm is the layer before the next; in a
    Transformer, where residuals come in between, it is the layer behind that is centred: the
    projections to queries, keys and values, or fc1.

    Args:
        model: an ``rbn_transformer``.

    Raises:
        ValueError: where what follows is not a linear layer.
    """
    cross = readers_of_encoder(model.decoder)
    for side, stack, behind in (("encoder", model.encoder, cross), ("decoder", model.decoder, [])):
        for option, norm, linear in _norms(stack, f"--norm-{side}", behind):
            parts = list(norm) if isinstance(norm, Composition) else [norm]
            moving = [isinstance(part, MovingAverageBatchNorm) for part in parts]
            if any(moving[:-1]):
                raise ValueError(
                    f"{option}: `mabn` needs a linear layer behind it, whose weights it centres, "
                    "but another norm comes. Put `mabn` last, as in `groupscale+mabn`."
                )
            if moving[-1] and not linear:
                plan = f"layer@{len(stack.layers) - 1}.ffn:mabn"
                raise ValueError(
                    f"{option}: `mabn` needs a linear layer behind it, whose weights it centres, "
                    f"but behind the last norm of the {side} there is none. Take another norm "
                    f"there: `{'layer' if option.endswith('final') else plan}`."
                )
            for each in linear if moving[-1] else []:
                _centre(each)
