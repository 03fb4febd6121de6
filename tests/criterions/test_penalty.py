"""The penalty, against its formulas written out; the criterion, against fairseq's own plus them."""

import copy
import math
from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics

import oracles
import small_models
from rbn_fairseq.criterions import LabelSmoothedCrossEntropyRBN
from rbn_fairseq.criterions.penalty import gap_terms
from rbn_fairseq.diagnostics import batch_norms
from rbn_fairseq.models import RBNTransformerModel
from rbn_fairseq.models.decoder import RBNTransformerDecoder
from rbn_fairseq.models.loss import HAS_CHUNKS
from rbn_fairseq.norms import BatchNorm, BatchNormOptions, ValidTokens, record_gaps
from small_models import build_criterion

CONVENTIONS = pytest.mark.parametrize("convention", ["paper", "official"])


def terms_written_out(norm, population, tokens, convention):
    """The two terms of one layer: ``population`` before the update, ``tokens: (n, C)`` real."""
    mean, var = oracles.moments(tokens)
    old_mean, old_var = population
    if convention == "paper":
        eps, mode = norm.options.eps, norm.options.eps_mode
        spread = (oracles.std(var, eps, mode) - oracles.std(old_var, eps, mode)) ** 2
    else:
        momentum = norm.options.momentum
        old_mean = (1 - momentum) * old_mean + momentum * mean.detach()
        old_var = (1 - momentum) * old_var + momentum * var.detach()
        spread = (var - old_var).abs()
    return torch.stack([((mean - old_mean) ** 2).sum(), spread.sum()])


def populations(norms):
    return [tuple(buffer.clone() for buffer in norm.buffers()) for norm in norms]


LAYERS = {  # (channels, options) of every layer
    "one layer": [(3, {})],
    "alike": [(3, {}), (3, {}), (3, {})],
    "one channel": [(1, {})],
    "different": [
        (3, {}),
        (5, {}),
        (3, {"eps": 0.3}),
        (3, {"momentum": 0.5}),
        (5, {"eps": 0.3, "eps_mode": "clamp"}),
        (3, {}),
    ],
}


@CONVENTIONS
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_terms_and_gradients_are_the_formulas(layers, convention):
    valid = oracles.real_tokens(5, [5, 2])
    norms = [
        BatchNorm(channels, BatchNormOptions(**options)).double() for channels, options in layers
    ]
    for norm in norms:
        norm.population.set(*torch.rand(2, norm.weight.numel()))
    before = populations(norms)
    inputs = [
        torch.randn(5, 2, norm.weight.numel(), dtype=torch.double, requires_grad=True)
        for norm in norms
    ]
    with record_gaps() as gaps:
        for norm, x in zip(norms, inputs, strict=True):
            norm(x, ValidTokens(valid))
    actual = gap_terms(gaps, convention)
    expected = sum(
        terms_written_out(norm, population, x[valid], convention)
        for norm, population, x in zip(norms, before, inputs, strict=True)
    )
    torch.testing.assert_close(torch.stack(actual), expected)  # fp64 rounding, as below
    for ours, exact in zip(actual, expected, strict=True):
        gradients = (torch.autograd.grad(term, inputs, retain_graph=True) for term in (ours, exact))
        for gradient, exact_gradient in zip(*gradients, strict=True):
            torch.testing.assert_close(gradient, exact_gradient)


@pytest.mark.parametrize("eps_mode", ["add", "clamp"])
@CONVENTIONS
def test_constant_channels_have_finite_gradients(convention, eps_mode):
    x = torch.full((4, 3), 0.25, requires_grad=True)
    with record_gaps() as gaps:
        BatchNorm(3, BatchNormOptions(eps_mode=eps_mode))(x)
    sum(gap_terms(gaps, convention)).backward()
    assert x.grad.isfinite().all()


@pytest.fixture(scope="module")
def task():
    return small_models.task()


@pytest.fixture
def model():
    """A small Transformer whose population statistics are away from those of any batch."""
    model = build_model(norm_encoder="batch")
    for norm in batch_norms(model).values():
        norm.population.set(torch.randn(16), 0.5 + torch.rand(16))
    return model


def build_model(**options):
    return small_models.build(**small_models.STILL, **options).train()


@pytest.fixture
def plain(task):
    return LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)


@pytest.fixture
def sample():
    return small_models.sample(([7, 3, 2], [5, 2, 4]))


def assert_rounded(actual, expected):
    """The same in fp32: sums of some hundred terms, in two orders."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0)


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def loss_and_terms(plain, model, sample, convention):
    """fairseq's loss; the two terms, written out from the inputs of the model's batch norms."""
    norms = list(batch_norms(model).values())
    before, inputs = populations(norms), {}
    hooks = [
        norm.register_forward_pre_hook(lambda norm, args: inputs.update({norm: args[0]}))
        for norm in norms
    ]
    loss = plain(model, sample)[0]
    for hook in hooks:
        hook.remove()
    assert len(norms) == 4
    return loss, sum(
        terms_written_out(norm, population, inputs[norm], convention)  # rows of real tokens
        for norm, population in zip(norms, before, strict=True)
    )


@pytest.mark.parametrize("reduction", ["sum", "token"])
@CONVENTIONS
def test_criterion_is_fairseqs_plus_the_weighted_terms(
    task, model, sample, plain, convention, reduction
):
    criterion = build_criterion(
        task,
        rbn_mean_weight=0.3,
        rbn_std_weight=0.7,
        rbn_convention=convention,
        rbn_reduction=reduction,
    )
    twin = copy.deepcopy(model)
    plain_loss, terms = loss_and_terms(plain, twin, sample, convention)
    factor = 11 if reduction == "token" else 1  # number of target tokens
    penalty = factor * (0.3 * terms[0] + 0.7 * terms[1])

    loss, sample_size, log = criterion(model, sample)
    # fp32 through a small network, in two orders of summation.
    torch.testing.assert_close(loss, plain_loss + penalty, rtol=1e-5, atol=0)
    assert sample_size == 11
    assert_rounded(log["loss"], plain_loss.detach())  # comparable with other norms
    for name, value in zip(("rbn_mean", "rbn_std", "rbn_penalty"), (*terms, penalty), strict=True):
        torch.testing.assert_close(log[name], value.detach(), rtol=1e-5, atol=0)
        assert not log[name].requires_grad

    expected = gradients(plain_loss + penalty, twin)
    actual = gradients(loss, model)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        size = expected[name].abs().max().item()
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5 * (1 + size))


@pytest.mark.parametrize("reduction", ["sum", "token"])
def test_unreduced_loss_sums_to_the_reduced_one(task, model, sample, reduction):
    criterion = build_criterion(task, rbn_mean_weight=0.3, rbn_reduction=reduction)
    whole = criterion(copy.deepcopy(model), sample)[0]
    parts, _, log = criterion(model, sample, reduce=False)
    assert parts.numel() == 11
    torch.testing.assert_close(parts.sum(), whole, rtol=1e-5, atol=0)  # fp32 sum of 11 terms
    torch.testing.assert_close(log["loss"].sum() + log["rbn_penalty"], whole, rtol=1e-5, atol=0)


@pytest.mark.parametrize("part", ["model", "criterion", "both"])
def test_no_penalty_in_evaluation(task, model, sample, plain, part):
    criterion = build_criterion(task, rbn_mean_weight=0.3, rbn_std_weight=0.7)
    model.train(part == "criterion")
    criterion.train(part == "model")
    twin = copy.deepcopy(model)
    loss, _, log = criterion(model, sample)
    plain_loss, _, plain_log = plain(twin, sample)
    assert_rounded(loss, plain_loss)
    assert log.keys() == plain_log.keys()


def test_no_penalty_where_layerdrop_leaves_no_batch_norm(task, sample, plain):
    model = build_model(norm_encoder="batch", encoder_layerdrop=1.0)
    loss = build_criterion(task, rbn_mean_weight=0.3)(model, sample)[0]
    assert_rounded(loss, plain(model, sample)[0])


def test_log_has_the_same_entries_whatever_layerdrop_drops(task, sample):
    # fairseq sums logs over micro-batches and processes by the keys of each process's first one.
    keys = []
    for layerdrop in (0.0, 1.0):
        model = build_model(norm_encoder="batch", encoder_layerdrop=layerdrop)
        keys.append(build_criterion(task, rbn_mean_weight=0.3)(model, sample)[2].keys())
    assert keys[0] == keys[1]


WEIGHTS = ("rbn_mean_weight", "rbn_std_weight")


@pytest.mark.parametrize("name", WEIGHTS)
def test_refuses_a_penalty_on_models_without_batch_norm(task, sample, name):
    model = build_model()
    criterion = build_criterion(task, **{name: 0.1})
    message = "--rbn-mean-weight.*--rbn-std-weight.*no.*--norm-encoder batch"
    with pytest.raises(ValueError, match=message):
        criterion.check_model(model)
    with pytest.raises(ValueError, match=message):
        criterion(model, sample)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("weight", [-1e-9, -math.inf, math.inf, math.nan])
def test_refuses_weights(task, name, weight):
    message = f"^--{name.replace('_', '-')} must be >= 0 and finite, but is {weight}"
    with pytest.raises(ValueError, match=message):
        build_criterion(task, **{name: weight})


@pytest.mark.parametrize("updates, part", [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)])
def test_warmup_is_linear(task, model, sample, updates, part):
    task.training = Namespace(updates=updates)
    found = []
    for warmup in (0, 4):
        criterion = build_criterion(task, rbn_mean_weight=0.3, rbn_warmup_updates=warmup)
        found.append(criterion(copy.deepcopy(model), sample)[2]["rbn_penalty"].item())
    assert found[0] > 0 and found[1] == pytest.approx(part * found[0])


@pytest.mark.parametrize(
    "options",
    [{"rbn_warmup_updates": -1}, {"rbn_warmup_updates": 9}],
    ids=["negative", "of nothing"],
)
def test_refuses_warmups(task, options):
    with pytest.raises(ValueError, match="--rbn-warmup-updates"):
        build_criterion(task, **options)


def test_refuses_a_warmup_where_the_task_does_not_know_of_updates(task):
    unaware = Namespace(target_dictionary=task.target_dictionary)
    with pytest.raises(ValueError, match="--rbn-warmup-updates .*--task translation_rbn"):
        build_criterion(unaware, rbn_mean_weight=0.1, rbn_warmup_updates=1)


def logs():
    first = {"loss": 8.0, "nll_loss": 6.0, "ntokens": 4, "sample_size": 4}
    first |= {"rbn_mean": 3.0, "rbn_std": 5.0, "rbn_penalty": 2.0, "rbn_batches": 1}
    second = {"loss": 9.0, "nll_loss": 8.0, "ntokens": 12, "sample_size": 12}
    second |= {"rbn_mean": 4.0, "rbn_std": 1.0, "rbn_penalty": 6.0, "rbn_batches": 1}
    return [first, second]


@pytest.mark.parametrize("summed", [False, True], ids=["one by one", "summed over processes"])
def test_metrics_are_means_over_batches_and_bits_per_token(summed):
    outputs = logs()
    if summed:  # what fairseq does where logging_outputs_can_be_summed()
        outputs = [{name: outputs[0][name] + outputs[1][name] for name in outputs[0]}]
    assert LabelSmoothedCrossEntropyRBN.logging_outputs_can_be_summed()
    with metrics.aggregate(new_root=True) as aggregate:
        LabelSmoothedCrossEntropyRBN.reduce_metrics(outputs)
    values = aggregate.get_smoothed_values()
    assert values["rbn_mean"] == pytest.approx(7 / 2)
    assert values["rbn_std"] == pytest.approx(6 / 2)
    # Rounded for display: to 6 digits, and to 3 by fairseq.
    assert values["rbn_penalty"] == pytest.approx(8 / 16 / math.log(2), abs=1e-6)
    assert values["loss"] == pytest.approx(17 / 16 / math.log(2), abs=1e-3)


def test_validation_logs_no_penalty():
    plain_log = {"loss": 8.0, "nll_loss": 6.0, "ntokens": 4, "sample_size": 4}
    with metrics.aggregate(new_root=True) as aggregate:
        LabelSmoothedCrossEntropyRBN.reduce_metrics([plain_log])
    assert not [name for name in aggregate.get_smoothed_values() if name.startswith("rbn")]


@pytest.fixture
def projections(monkeypatch):
    """Softmaxes of logits."""
    made = []

    def log_softmax(x, dim, onnx_trace=False):
        made.append(x.shape)
        return x.log_softmax(dim)

    monkeypatch.setattr("fairseq.utils.log_softmax", log_softmax)
    return made


class OwnProjection(RBNTransformerDecoder):
    def output_layer(self, features):
        return super().output_layer(features)


class OwnForward(RBNTransformerModel):
    def forward(self, src_tokens, src_lengths, prev_output_tokens):
        return super().forward(src_tokens, src_lengths, prev_output_tokens)


class OwnProbabilities(RBNTransformerModel):
    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return super().get_normalized_probs(net_output, log_probs, sample)


def become(part, kind):
    part.__class__ = kind


WITH_LOGITS = {
    "half precision": lambda model: model.bfloat16(),
    "own projection": lambda model: become(model.decoder, OwnProjection),
    "own forward": lambda model: become(model, OwnForward),
    "own probabilities": lambda model: become(model, OwnProbabilities),
    "bias": lambda model: setattr(
        model.decoder.output_projection, "bias", torch.nn.Parameter(torch.ones(34))
    ),
    "autocast": lambda model: None,
}


@pytest.mark.parametrize("change", WITH_LOGITS)
def test_where_logits_are_wanted(task, model, sample, projections, change):
    WITH_LOGITS[change](model)
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        assert build_criterion(task)(model, sample)[0].isfinite() and projections


@pytest.mark.skipif(not HAS_CHUNKS, reason="torch before 2.13")
@pytest.mark.parametrize("options", [{"ignore_prefix_size": 1}, {}])
@pytest.mark.parametrize("training", [True, False])
def test_elsewhere_no_logits_are_made(task, model, sample, projections, options, training):
    criterion = build_criterion(task, **options).train(training)
    assert criterion(model.train(training), sample)[0].isfinite() and not projections
