"""The model against one that is written out: sentence by sentence, statistics by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

import by_sentence
from rbn_fairseq.norms import BatchNorm, LengthBins
from small_models import (
    BATCH,
    DEEP,
    FINALS,
    HYBRID,
    LENGTHS,
    PERI,
    PRE,
    STILL,
    SUB,
    assert_alike,
    assert_same_gradients,
    build,
    build_criterion,
    gradients,
    randomise,
    sample,
)

NORMS = {
    "layer": {},
    "batch": BATCH | FINALS,
    "batch in the encoder": {"norm_encoder": "batch"},
    "instance": {"norm_encoder": "instance", "norm_encoder_final": "instance"},
    "bins": {
        "norm_encoder": "batch", "norm_encoder_final": "batch", "norm_batch_length_bins": 3
    },
    "mixed": {
        "norm_encoder": "batch@0.ffn:instance@1:layer", "norm_decoder": "layer@1.cross:batch@0"
        ":none@1.self:layer",
    },
    "embedding": {
        "norm_encoder": "instance@embedding:batch", "norm_decoder": "batch@embedding:layer"
    },
    "heads": {
        "norm_encoder": "batch@0.qk:layer@qkv:layer", "norm_decoder": "layer@0.qk:batch@qkv:layer"
    },
    "first layer": {
        "norm_encoder": "layer@0.self:batch", "norm_decoder": "layer@0.self:layer@0.cross:layer"
    },
    "bins of the embedding": {"norm_encoder": "batch@embedding:layer", "norm_batch_length_bins": 3},
}  # fmt: skip
PLACEMENTS = {"post": {}, "pre": PRE, "sub": SUB, "deepnorm": DEEP, "peri": PERI, "hybrid": HYBRID}
BY_SENTENCE = ("instance", "bins", "mixed")  # not for heads
PAIRED = pytest.mark.parametrize(
    "norms, placement",
    [
        pytest.param(NORMS[name], PLACEMENTS[place], id=f"{name}-{place}")
        for name, place in itertools.product(NORMS, PLACEMENTS)
        if place != "hybrid" or name not in BY_SENTENCE
    ],
)
# Lengths, sides of padding and further columns. Without a batch of one token: its variance is 0,
# and rounding is divided by eps's root.
GIVEN = pytest.mark.parametrize(
    "given",
    [
        (LENGTHS["many"], (True, False), 0),
        (LENGTHS["many"], (False, True), 2),
        (LENGTHS["no padding"],),
        (LENGTHS["one sentence"],),
    ],
    ids=["many", "padded otherwise", "no padding", "one sentence"],
)


def alphas(placement, encoder, decoder):
    """DeepNorm's, by logarithms, so that they are another computation."""
    if placement is not DEEP:
        return 1.0, 1.0
    log = math.log(encoder) / 4 + math.log(decoder) / 16
    return 0.81 * math.exp(log), math.exp(math.log(3 * decoder) / 4)


def models(norms, placement, **options):
    """The model, and one written out of its twin, whose statistics have been somewhere."""
    depths = {"encoder_layers": 2, "decoder_layers": 3}
    named = "@embedding" in norms.get("norm_encoder", "") or placement is PERI
    sizes = {"encoder_attention_heads": 4, "layernorm_embedding": not named} | depths | options
    found = []
    for _ in range(2):
        model = randomise(build(**STILL, **sizes, **norms, **placement)).double()
        bins = LengthBins(np.array([1.0, 3.0, 6.0, 12.0]), np.array([2.0, 4.5, 9.0]))
        for norm in model.modules():
            if isinstance(norm, BatchNorm) and norm.population.by_length:
                norm.population.set_bins(bins)
                generator = torch.Generator().manual_seed(7)
                weights = torch.tensor([0.01, 0.3, 0.5])  # the first below the momentum
                norm.population.bin_weight.copy_(weights)
                for sums in (norm.population.bin_mean, norm.population.bin_var):
                    sums.copy_(
                        weights[:, None] * (0.5 + torch.rand(sums.shape, generator=generator))
                    )
        found.append(model)
    return found[0], found[1], alphas(placement, 2, 3)


def written(model, given, constants):
    """Logits ``(T, V)`` by sentence, of the model written out, and it itself."""
    out = by_sentence.Written(model, constants)
    inputs = given["net_input"]
    logits = out.logits(
        by_sentence.real(inputs["src_tokens"]), by_sentence.real(inputs["prev_output_tokens"])
    )
    return logits, out


@GIVEN
@PAIRED
@pytest.mark.usefixtures("double_softmax")
def test_training(norms, placement, given):
    model, twin, constants = models(norms, placement)
    lengths, given = given[0], sample(*given)
    logits, out = written(twin.train(), given, constants)
    targets = by_sentence.real(given["target"])
    loss, nll = by_sentence.smoothed_loss(logits, targets, 0.1)
    weights = {"rbn_mean_weight": 0.3, "rbn_std_weight": 0.7} if out.seen else {}
    penalty = out.penalty(0.3, 0.7)
    moved = out.moved()

    total, size, log = build_criterion(**weights)(model.train(), given)
    assert_alike(total, loss + penalty, "loss")
    assert_alike(log["loss"], loss.detach(), "logged loss")
    assert_alike(log["nll_loss"], nll.detach(), "logged nll")
    assert (size, log["nsentences"]) == (sum(lengths[1]), len(lengths[1]))
    if out.seen:
        assert_alike(log["rbn_penalty"].double(), penalty.detach(), "penalty", noise=1e-6)
    assert_same_gradients(gradients(model, total), gradients(twin, loss + penalty))

    for name, norm in twin.named_modules():
        if id(norm) in moved:
            population = model.get_submodule(name).population
            for part, value in moved[id(norm)].items():
                assert_alike(getattr(population, part), value, f"{name}.{part}")


@GIVEN
@PAIRED
@torch.no_grad()
def test_evaluation(norms, placement, given):
    model, twin, constants = models(norms, placement)
    given = sample(*given)
    logits, out = written(twin.eval(), given, constants)
    found, extra = model.eval()(**given["net_input"])
    at = given["net_input"]["prev_output_tokens"].ne(1)
    assert_alike(found[at], torch.cat(logits), "logits")
    sources = given["net_input"]["src_tokens"].ne(1)
    for row, weights in enumerate(out.weights):
        own = extra["attn"][0][row][at[row]][:, sources[row]]
        # Of scores in fp32, as fairseq's: those of some tens are rounded to 1e-6.
        torch.testing.assert_close(own, weights.mean(0), rtol=0, atol=2e-5)
