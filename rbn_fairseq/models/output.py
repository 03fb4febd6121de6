"""Output of models with a decoder: logits of rows or of padded batches, or the loss itself."""

from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from rbn_fairseq.models.decoder import RBNTransformerDecoder, padded_extra
from rbn_fairseq.models.loss import HAS_CHUNKS, Wanted, label_smoothed_loss, pack_targets
from rbn_fairseq.models.rbn_model import RBNModel
from rbn_fairseq.models.unit_embeddings import UnitProjection, output_weight
from rbn_fairseq.norms import BatchLayout

__all__ = ["DecodingModel"]


class DecodingModel(RBNModel):
    """Mixin of a model whose decoder computes rows of real tokens."""

    decoder: RBNTransformerDecoder

    @property
    def gives_loss(self) -> bool:
        """Whether the forward can return a loss, for which no logits are made.

        Not in half precision, where sums over all types need more than its range, and not where
        a subclass has a way of its own to the probabilities.
        """
        ways = ("forward", "get_normalized_probs", "get_targets")
        own = next(base for base in type(self).__mro__ if "kind" in vars(base))
        layer = self.decoder.output_projection  # None with an adaptive softmax
        return (
            HAS_CHUNKS
            and all(getattr(type(self), way) is getattr(own, way) for way in ways)
            and type(self.decoder).output_layer is TransformerDecoderBase.output_layer
            and type(layer) in (nn.Linear, UnitProjection)
            and layer.bias is None
            and layer.weight.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled(layer.weight.device.type)
        )

    def give(
        self,
        x: Tensor,
        states: list[Tensor],
        weights: Optional[Tensor],
        source: BatchLayout,
        target: BatchLayout,
        features_only: bool,
        wanted: Optional[Wanted],
    ) -> Any:
        """Return the forward's result.

        Args:
            x: the decoder's output, ``(N, C)``.
            states: of its layers, ``(N, C)``.
            weights: of its last cross-attention, ``(N, heads, S)``, or ``None``.
            source: layout of the encoder's rows.
            target: layout of the decoder's.
            features_only: leave the output projection out.
            wanted: return a loss in place of logits, where :attr:`gives_loss`.

        Returns:
            In evaluation what fairseq's models return, logits ``(B, T, V)``, 0 at padding, and a
            dictionary. In training logits of rows ``(N, V)`` of real tokens, and a dictionary
            without attention weights. In both the dictionary has the ``layout`` of the rows, by
            which :meth:`get_targets` orders the targets.
        """
        if wanted is not None:
            # Here rather than in the criterion: a process's gradients of weights that are used
            # outside the forward are not always added to the others'.
            weight = output_weight(self.decoder.output_projection)
            return label_smoothed_loss(x, weight, target, wanted)
        if not features_only:
            x = self.decoder.output_layer(x)
        if self.training:
            return x, {"attn": [None], "inner_states": states, "layout": target}
        extra = padded_extra(states, weights, source, target)
        return target.unpack(x), {**extra, "layout": target}

    def get_targets(self, sample: dict[str, Any], net_output: Any) -> Tensor:
        """Return the targets of an output of the forward, ``(N,)`` in training, or ``(B, T)``.

        Raises:
            ValueError: if the targets have another shape than the decoder's tokens, or are more.
        """
        target: Tensor = sample["target"]
        layout = net_output[1].get("layout") if isinstance(net_output[1], dict) else None
        if layout is None:
            return target
        packed = pack_targets(target, layout, sample.get("ntokens"))
        return packed if net_output[0].dim() == 2 else target
