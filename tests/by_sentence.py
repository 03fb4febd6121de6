"""The model written out: each sentence alone, batch statistics of all real tokens by hand."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

import oracles
from rbn_fairseq.models.placements import HeadNorm, SubNorm
from rbn_fairseq.norms import BatchNorm, InstanceNorm, LayerNorm, NoNorm

Sentences = list[Tensor]  # of (length, ...) each


class Seen(NamedTuple):
    """What a batch norm saw in training: all tokens, by sentence, and their moments."""

    norm: BatchNorm
    tokens: Sentences
    mean: Tensor
    var: Tensor


def real(tokens: Tensor, pad: int = 1) -> Sentences:
    """The sentences of a padded batch, without their padding."""
    return [row[row != pad] for row in tokens]


def linear(module: nn.Module, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def softmax(scores: Tensor) -> Tensor:
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Joined heads and their weights ``(heads, T, S)``, for one sentence; not yet projected."""
    width = q.shape[1] // heads
    joined, weights = [], []
    for head in range(heads):
        channels = slice(head * width, (head + 1) * width)
        scores = q[:, channels] @ k[:, channels].T / math.sqrt(width)
        if causal:
            later = torch.ones(scores.shape, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        weights.append(softmax(scores))
        joined.append(weights[-1] @ v[:, channels])
    return torch.cat(joined, 1), torch.stack(weights)


def is_by_length(norm: nn.Module) -> bool:
    return isinstance(norm, BatchNorm) and norm.population.by_length


def by_bin(norm: BatchNorm, lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance ``(B, C)`` for sentences: linear between the centres of the bins."""
    population = norm.population
    weight = population.bin_weight.unsqueeze(1)
    centres, moments = population.centres.numpy(), []
    for sums in (population.bin_mean, population.bin_var):
        values = (sums / weight).numpy()
        moments.append(
            np.stack([np.interp(lengths, centres, channel) for channel in values.T], axis=1)
        )
    return moments[0], moments[1]


class Written:
    """A forward of an ``rbn_transformer`` written out; without dropout.

    Args:
        model: whose parameters and running statistics are read.
        alphas: what residuals are multiplied by in encoder and decoder.

    Attributes:
        seen: what every batch norm saw in training.
        weights: of the last decoder layer's cross-attention, by sentence, ``(heads, T, S)``.
    """

    def __init__(self, model: nn.Module, alphas: tuple[float, float] = (1.0, 1.0)) -> None:
        self.model, self.alphas = model, alphas
        self.seen: list[Seen] = []
        self.weights: list[Tensor] = []

    def norm(self, norm: nn.Module, x: Sentences) -> Sentences:
        if isinstance(norm, NoNorm):
            return x
        if isinstance(norm, nn.LayerNorm | LayerNorm):
            return [F.layer_norm(one, one.shape[-1:], norm.weight, norm.bias, 1e-5) for one in x]
        if isinstance(norm, InstanceNorm):
            moments = [oracles.moments(one) for one in x]
        elif not self.model.training and is_by_length(norm):
            by_length = by_bin(norm, [len(one) for one in x])
            moments = list(zip(*map(torch.from_numpy, by_length), strict=True))
        elif not self.model.training:
            moments = [norm.population.get()] * len(x)
        else:
            assert isinstance(norm, BatchNorm)
            moments = [oracles.moments(torch.cat(x))] * len(x)
            self.seen.append(Seen(norm, x, *moments[0]))
        return [
            (one - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
            for one, (mean, var) in zip(x, moments, strict=True)
        ]

    def project(self, projection, x: Sentences, heads: int) -> Sentences:
        """Queries, keys or values; the channels of a head are a row of the norm behind them."""
        y = [linear(projection, one) for one in x]
        if not isinstance(projection, HeadNorm):
            return y
        rows = [torch.stack([part for token in one for part in token.chunk(heads)]) for one in y]
        return [one.reshape(-1, x[0].shape[1]) for one in self.norm(projection.norm, rows)]

    def attention(self, layer, name, x: Sentences, memory: Sentences, causal: bool) -> Sentences:
        attention, end = getattr(layer, name), getattr(layer, f"{name}_out")
        heads = attention.num_heads
        given = ((attention.q_proj, x), (attention.k_proj, memory), (attention.v_proj, memory))
        qkv = [self.project(*pair, heads) for pair in given]
        joined, weights = zip(
            *(attend(*sentence, heads, causal) for sentence in zip(*qkv, strict=True)),
            strict=True,
        )
        if name == "encoder_attn":
            self.weights = list(weights)
        if isinstance(end, SubNorm):
            return [linear(end.projection, one) for one in self.norm(end.norm, list(joined))]
        return self.norm(end, [linear(attention.out_proj, one) for one in joined])

    def layer(self, layer, x: Sentences, alpha: float, memory=None, causal=False) -> Sentences:
        def feed(x: Sentences) -> Sentences:
            hidden = [linear(layer.fc1, one).relu() for one in x]
            y = [linear(layer.fc2, one) for one in self.norm(layer.fc2_norm, hidden)]
            return self.norm(layer.ffn_out, y)

        # In HybridNorm, X' = FFN(Norm(Y)) + Norm(Y), unless attention reads a norm in this layer.
        hybrid = self.model.cfg.norms.placement == "hybrid"
        hybrid = hybrid and isinstance(layer.self_attn_layer_norm, NoNorm)
        sublayers = [
            (layer.self_attn_layer_norm, lambda x: self.attention(layer, "self_attn", x, x, causal))
        ]
        if memory is not None:
            sublayers.append(
                (
                    layer.encoder_attn_layer_norm,
                    lambda x: self.attention(layer, "encoder_attn", x, memory, False),
                )
            )
        sublayers.append((layer.final_layer_norm, feed))
        for norm, function in sublayers:
            if layer.normalize_before:
                normalised = self.norm(norm, x)
                changed = function(normalised)
                x = normalised if hybrid and function is feed else x
                x = [alpha * one + other for one, other in zip(x, changed, strict=True)]
            else:
                joined = zip(x, function(x), strict=True)
                x = self.norm(norm, [alpha * one + other for one, other in joined])
        return x

    def embed(self, stack, tokens: Sentences) -> Sentences:
        x = [math.sqrt(stack.embed_tokens.embedding_dim) * stack.embed_tokens.weight[one]
             for one in tokens]  # fmt: skip
        if stack.embed_positions is not None:
            pad = stack.padding_idx
            if isinstance(stack.embed_positions, SinusoidalPositionalEmbedding):
                table = SinusoidalPositionalEmbedding.get_embedding(60, x[0].shape[1], pad)
            else:
                table = stack.embed_positions.weight
            x = [one + table[pad + 1 : pad + 1 + len(one)] for one in x]
        return x if stack.layernorm_embedding is None else self.norm(stack.layernorm_embedding, x)

    def encode(self, source: Sentences) -> Sentences:
        x = self.embed(self.model.encoder, source)
        for layer in self.model.encoder.layers:
            x = self.layer(layer, x, self.alphas[0])
        return x if self.model.encoder.layer_norm is None else self.norm(
            self.model.encoder.layer_norm, x
        )  # fmt: skip

    def logits(self, source: Sentences, inputs: Sentences) -> Sentences:
        """Logits ``(T, V)`` of each sentence."""
        memory, decoder = self.encode(source), self.model.decoder
        x = self.embed(decoder, inputs)
        for layer in decoder.layers:
            x = self.layer(layer, x, self.alphas[1], memory, causal=True)
        if decoder.layer_norm is not None:
            x = self.norm(decoder.layer_norm, x)
        return [one @ decoder.output_projection.weight.T for one in x]

    def penalty(self, mean_weight: float, std_weight: float) -> Tensor:
        """The paper's, against the running statistics as they are now."""
        total = torch.zeros((), dtype=torch.double)
        for norm, tokens, mean, var in self.seen:
            old_mean, old_var = expected(norm, [len(one) for one in tokens])
            gaps = ((var + 1e-5).sqrt() - (old_var + 1e-5).sqrt()) ** 2
            total = total + mean_weight * ((mean - old_mean) ** 2).sum() + std_weight * gaps.sum()
        return total

    def moved(self) -> dict[int, dict[str, Tensor]]:
        """Running statistics after this batch, by ``id`` of their norm and by name."""
        after = {}
        for norm, tokens, mean, var in self.seen:
            m, old = norm.options.momentum, norm.population
            new = {
                "running_mean": (1 - m) * old.running_mean + m * mean.detach(),
                "running_var": (1 - m) * old.running_var + m * var.detach(),
            }
            if is_by_length(norm):
                new |= moved_bins(norm, tokens)
            after[id(norm)] = new
        return after


def expected(norm: BatchNorm, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """What running statistics expect of the tokens of sentences of these lengths."""
    if not is_by_length(norm):
        return norm.population.get()
    mean, var = by_bin(norm, lengths)
    part = np.array(lengths)[:, None] / sum(lengths)
    joint = (part * mean).sum(0)
    return torch.from_numpy(joint), torch.from_numpy((part * (var + mean**2)).sum(0) - joint**2)


def moved_bins(norm: BatchNorm, tokens: Sentences) -> dict[str, Tensor]:
    """The decayed sums of every bin after these sentences."""
    m, old = norm.options.momentum, norm.population
    edges = [-math.inf, *old.edges[1:-1].tolist(), math.inf]
    new = {name: getattr(old, name).clone() for name in ("bin_weight", "bin_mean", "bin_var")}
    count = sum(map(len, tokens))
    for number, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        inside = [one.detach() for one in tokens if low <= len(one) < high]
        decay = 1 - m if old.bin_weight[number] >= m else 1
        for name in new:
            new[name][number] *= decay
        if inside:
            part = m * sum(map(len, inside)) / count
            mean, var = oracles.moments(torch.cat(inside))
            new["bin_weight"][number] += part
            new["bin_mean"][number] += part * mean
            new["bin_var"][number] += part * var
    return new


def smoothed_loss(logits: Sentences, targets: Sentences, smoothing: float) -> tuple[Tensor, Tensor]:
    """Label-smoothed loss and nll, summed over all tokens, each by its definition."""
    loss = nll = torch.zeros((), dtype=torch.double)
    for scores, words in zip(logits, targets, strict=True):
        logs = softmax(scores).log()
        spread = torch.full_like(logs, smoothing / (logs.shape[1] - 1))
        spread[torch.arange(len(words)), words] = 1 - smoothing
        loss = loss - (spread * logs).sum()
        nll = nll - logs[torch.arange(len(words)), words].sum()
    return loss, nll
