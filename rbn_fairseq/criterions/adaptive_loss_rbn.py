"""Cross-entropy of an adaptive softmax, with the RBN penalty."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig

from rbn_fairseq.criterions.cross_entropy_rbn import PerplexityOfTokens
from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig

__all__ = ["AdaptiveLossRBN"]


@dataclass
class AdaptiveLossRBNConfig(RBNPenaltyConfig, AdaptiveLossConfig):
    """Options of the loss and of the penalty."""


class _EveryTarget(AdaptiveLoss):
    """Loss of an adaptive softmax (Grave et al., 2017, arXiv:1609.04309), of every target.

    fairseq's takes padding's index for "no target" within each cluster of rare types, too, where
    it is the index of another type, and leaves that one's loss out.
    """

    def forward(self, model: Any, sample: Any, reduce: bool = True) -> Any:
        """Compute the loss as fairseq's criterion does, without what it leaves out.

        Without ``reduce`` the loss is a row for each target, in the order of the model's rows.
        """
        output = model(**sample["net_input"])
        target = model.get_targets(sample, output).flatten()
        real = target.ne(self.padding_idx).nonzero().squeeze(1)
        softmax = model.decoder.adaptive_softmax
        logits, clusters = softmax(output[0].flatten(0, -2)[real], target[real])
        # In fp32 or better: the sum over a batch is more than half precision holds.
        wide = torch.promote_types(logits[0].dtype, torch.float32)
        losses = F.cross_entropy(logits[0].to(wide), clusters[0], reduction="none")
        members = softmax.adapt_target(target[real])[1]
        for scores, inside, places in zip(logits[1:], clusters[1:], members, strict=True):
            if inside is not None:
                rare = F.cross_entropy(scores.to(wide), inside, reduction="none")
                losses = losses.index_add(0, places, rare)
        size = len(sample["target"]) if self.sentence_avg else len(real)
        loss = losses.sum() if reduce else losses
        log = {
            "loss": loss.detach(),
            "ntokens": len(real),
            "nsentences": len(sample["target"]),
            "sample_size": size,
        }
        return loss, size, log


@register_criterion("adaptive_loss_rbn", dataclass=AdaptiveLossRBNConfig)
class AdaptiveLossRBN(RBNPenalty, PerplexityOfTokens, _EveryTarget):
    """Loss of an adaptive softmax plus the penalty (paper, Section 4.1)."""
