"""Controls: what else differs between fairseq's batches and mixed ones, and what FixNorm changes.

Used by ``--user-dir results/sampler/controls``.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig
from torch import nn

from rbn_fairseq.callbacks import Callback, with_options
from rbn_fairseq.criterions.label_smoothed_cross_entropy_rbn import (
    LabelSmoothedCrossEntropyRBN,
    LabelSmoothedCrossEntropyRBNConfig,
)
from rbn_fairseq.measuring.batches import _Mixer
from rbn_fairseq.tasks.callbacks import CALLBACKS
from rbn_fairseq.tasks.translation_rbn import TranslationRBNTask


@dataclass
class EqualWeightsConfig(LabelSmoothedCrossEntropyRBNConfig):
    """Options of EqualWeights."""

    mean_tokens: float = field(
        default=1.0, metadata={"help": "target tokens of a training batch, on average"}
    )


@register_criterion("equal_weights", dataclass=EqualWeightsConfig)
class EqualWeights(LabelSmoothedCrossEntropyRBN):
    """Divides the loss of each update by the mean number of tokens in place of its own.

    So every token weighs the same, as it about does in mixed batches, which have equal numbers of
    them; in fairseq's batches a token of a small batch weighs more.
    """

    @classmethod
    def build_criterion(cls, cfg: EqualWeightsConfig, task: Any) -> Any:
        """As its base."""
        criterion = super().build_criterion(cfg, task)
        criterion.mean_tokens = cfg.mean_tokens
        return criterion

    def forward(self, model: nn.Module, sample: Any, reduce: bool = True) -> Any:
        """As its base; in training the sample size that gradients are divided by is constant."""
        loss, size, log = super().forward(model, sample, reduce)
        return loss, self.mean_tokens if model.training else size, log


class _FirstEpochs(_Mixer):
    def __call__(self, dataset: Any, epoch: int) -> list[Any]:
        return super().__call__(dataset, 1)


class OneComposition(Callback):
    """Keeps the mixed batches of the first epoch; only their order changes."""

    def on_batches(self, iterator: Any) -> None:
        """Fix the composer that LengthMixing has set."""
        if type(iterator.batch_sampler) is _Mixer:
            iterator.batch_sampler.__class__ = _FirstEpochs
            iterator._frozen_batches = None


@register_task("translation_one_composition", dataclass=with_options(TranslationConfig, CALLBACKS))
class TranslationOneComposition(TranslationRBNTask):
    """translation_rbn with batches that are composed once."""

    callbacks = (*CALLBACKS, OneComposition)


@register_task("translation_long_embeddings", dataclass=with_options(TranslationConfig, CALLBACKS))
class TranslationLongEmbeddings(TranslationRBNTask):
    """translation_rbn with FixNorm's embeddings, shared by both sides, turned as slowly as LN's.

    15.3 times as large as FixNorm's first values, they deviate by 128^-0.5, as fairseq's do.
    """

    factor = 15.3

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As its base. Embeddings of --init-from would be multiplied, too."""
        model = super().build_model(cfg, from_checkpoint)
        with torch.no_grad():
            model.encoder.embed_tokens.weight.mul_(self.factor)
        return model


@register_task("translation_short_embeddings", dataclass=with_options(TranslationConfig, CALLBACKS))
class TranslationShortEmbeddings(TranslationLongEmbeddings):
    """translation_rbn with LN's embeddings, whose first values deviate as little as FixNorm's."""

    factor = 1 / 15.3


@register_task("translation_fast_embeddings", dataclass=with_options(TranslationConfig, CALLBACKS))
class TranslationFastEmbeddings(TranslationRBNTask):
    """translation_rbn whose embeddings, shared by both sides, take steps 4 times as long."""

    def optimizer_step(self, optimizer: Any, model: nn.Module, update_num: int) -> None:
        """As its base, then go on three more times as far: Adam with 4 times the learning rate."""
        embeddings = model.encoder.embed_tokens.weight
        before = embeddings.detach().clone()
        super().optimizer_step(optimizer, model, update_num)
        with torch.no_grad():
            embeddings.add_(embeddings - before, alpha=3)
