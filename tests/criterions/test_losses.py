"""Criterions, fairseq's and ours, on our model: the same as on fairseq's transformer."""

import math

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerModel

from rbn_fairseq.criterions import (
    CRFRBN,
    AdaptiveLossRBN,
    CrossEntropyRBN,
    LabelSmoothedCrossEntropyRBN,
)
from small_models import (
    LENGTHS,
    PRE,
    STILL,
    assert_alike,
    assert_same_gradients,
    build,
    gradients,
    randomise,
    sample,
    task,
)

pytestmark = pytest.mark.usefixtures("double_softmax")

SMOOTHED = {"label_smoothing": 0.1}
CRITERIONS = {
    "cross entropy": (CrossEntropyCriterion, {}),
    "ours, cross entropy": (CrossEntropyRBN, {}),
    "fairseq's": (LabelSmoothedCrossEntropyCriterion, SMOOTHED),
    "fairseq's, accuracy": (
        LabelSmoothedCrossEntropyCriterion, SMOOTHED | {"report_accuracy": True}
    ),
    "ours": (LabelSmoothedCrossEntropyRBN, SMOOTHED),
    "ours, no smoothing": (LabelSmoothedCrossEntropyRBN, {"label_smoothing": 0.0}),
    "ours, accuracy": (LabelSmoothedCrossEntropyRBN, SMOOTHED | {"report_accuracy": True}),
    "ours, prefix": (
        LabelSmoothedCrossEntropyRBN,
        SMOOTHED | {"ignore_prefix_size": 2, "report_accuracy": True},
    ),
}  # fmt: skip
EVERY = pytest.mark.parametrize("kind, options", CRITERIONS.values(), ids=CRITERIONS)
# Lengths, sides of padding and further columns; fairseq's transformer gets the first padding.
BATCHES = {
    **{name: (lengths, (True, False), 0) for name, lengths in LENGTHS.items()},
    "the other way": (LENGTHS["many"], (False, True), 0),
    "wider": (LENGTHS["many"], (True, False), 2),
}
GIVEN = pytest.mark.parametrize("given", BATCHES.values(), ids=BATCHES)
TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def models(**options):
    theirs = randomise(build(TransformerModel, **STILL, **PRE, **options)).double()
    ours = build(**STILL, **PRE, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def criterion(kind, options, sentence_avg=False):
    return kind(task(), sentence_avg=sentence_avg, **options)


def fairseqs(kind):
    """What a criterion is compared with on fairseq's model."""
    return {
        CrossEntropyRBN: CrossEntropyCriterion,
        LabelSmoothedCrossEntropyRBN: LabelSmoothedCrossEntropyCriterion,
    }.get(kind, kind)


def assert_same_log(log, other):
    assert log.keys() == other.keys()
    for name, value in other.items():
        if isinstance(value, torch.Tensor):
            assert not log[name].requires_grad
            assert_alike(log[name], value, name)
        else:
            assert log[name] == value, name


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@TRAINING
@GIVEN
@EVERY
def test_losses_logs_and_gradients_are_fairseqs(kind, options, given, training, tied):
    if options.get("ignore_prefix_size") and given[1][1]:
        pytest.skip("fairseq leaves out columns, where padding in front takes their place")
    ours, theirs = models(share_decoder_input_output_embed=tied)
    mine, other = criterion(kind, options), criterion(fairseqs(kind), options)
    for part in (ours, theirs, mine, other):
        part.train(training)
    loss, size, log = mine(ours, sample(*given))
    expected, other_size, other_log = other(theirs, sample(given[0]))
    assert_alike(loss, expected, "loss")
    assert size == other_size
    assert_same_log(log, other_log)
    assert_same_gradients(gradients(ours, loss), gradients(theirs, expected))
    with torch.no_grad():  # as in validation
        again, _, _ = mine(ours, sample(*given))
    assert_alike(again, expected.detach(), "loss")
    assert not again.requires_grad


@EVERY
@TRAINING
def test_by_sentence(kind, options, training):
    """--sentence-avg."""
    ours, theirs = models()
    mine, other = criterion(kind, options, True), criterion(fairseqs(kind), options, True)
    results = [
        part.train(training)(model.train(training), sample())
        for part, model in ((mine, ours), (other, theirs))
    ]
    (loss, size, log), (expected, other_size, other_log) = results
    assert_alike(loss, expected)
    assert size == other_size == 7
    assert_same_log(log, other_log)


@EVERY
@TRAINING
def test_not_reduced(kind, options, training):
    ours, theirs = models()
    mine, other = criterion(kind, options), criterion(fairseqs(kind), options)
    given = sample(wider=2)
    losses = mine.train(training)(ours.train(training), given, reduce=False)[0]
    whole = mine(ours, given)[0]
    expected = other.train(training)(theirs.train(training), given, reduce=False)[0]
    assert_alike(losses.sum(), whole, "sum")
    assert_alike(losses.sum(), expected.sum(), "fairseq's sum")
    # In training one number for a row, in another order than fairseq's.
    one, two = losses.flatten().sort()[0], expected.flatten().sort()[0]
    assert_alike(one[one > 0], two[two > 0], "each")
    assert_same_gradients(gradients(ours, losses.sum()), gradients(theirs, expected.sum()))


@TRAINING
def test_adaptive_softmax(training):
    options = {"adaptive_softmax_cutoff": "6,20", "adaptive_softmax_dropout": 0.0}
    ours, theirs = models(**options)
    assert not ours.gives_loss
    ours.train(training), theirs.train(training)
    known, given = sample(), sample(left=(True, True), wider=1)
    adaptive = criterion(AdaptiveLoss, {})
    loss, size, _ = adaptive(ours, given)
    expected, other_size, _ = adaptive(theirs, known)
    assert size == other_size
    assert_alike(loss, expected)
    assert_same_gradients(gradients(ours, loss), gradients(theirs, expected))


@pytest.mark.parametrize("cutoff", ["6,20", "5,9,30"])
@TRAINING
def test_our_loss_of_an_adaptive_softmax_is_that_of_every_target(training, cutoff):
    """The negative logarithm of fairseq's probability of each target, whatever its type."""
    ours, theirs = models(adaptive_softmax_cutoff=cutoff, adaptive_softmax_dropout=0.0)
    ours.train(training), theirs.train(training)
    known, given = sample(), sample(left=(True, True), wider=1)
    # Padding has the number 1, by which fairseq's loss leaves out the second type of a cluster.
    second = int(cutoff.split(",")[0]) + 1
    for one, target in ((known, known["target"]), (given, given["target"])):
        one["target"] = target.where(target.eq(1) | (target % 3 > 0), second)
    with torch.no_grad():
        output = theirs.eval()(**known["net_input"])
        logs = theirs.get_normalized_probs(output, log_probs=True)
        real = known["target"].ne(1)
        each = -logs.gather(2, known["target"].unsqueeze(2)).squeeze(2)[real]
    assert_alike(logs.exp().sum(2), torch.ones(real.shape, dtype=torch.double), "sum")
    adaptive = criterion(AdaptiveLossRBN, {}).train(training)
    loss, size, log = adaptive(ours, given)
    assert_alike(loss, each.sum(), "loss")
    assert size == log["ntokens"] == int(real.sum()) and log["nsentences"] == len(real)
    assert_alike(adaptive(ours, given, reduce=False)[0].sort()[0], each.sort()[0], "each")
    assert criterion(AdaptiveLoss, {})(theirs, known)[0] < loss - 1


@TRAINING
def test_gradients_of_our_loss_of_an_adaptive_softmax(training):
    """fairseq's, of targets that it leaves none out of."""
    ours, theirs = models(adaptive_softmax_cutoff="6,20", adaptive_softmax_dropout=0.0)
    ours.train(training), theirs.train(training)
    given = sample()
    given["target"] = given["target"].where(given["target"].ne(7) & given["target"].ne(21), 8)
    loss = criterion(AdaptiveLossRBN, {}).train(training)(ours, given)[0]
    expected = criterion(AdaptiveLoss, {})(theirs, given)[0]
    assert_alike(loss, expected.squeeze())
    assert_same_gradients(gradients(ours, loss), gradients(theirs, expected))


def test_our_loss_of_an_adaptive_softmax_is_summed_in_full_precision():
    """Half precision holds no sum over a batch: 20,000 tokens have more than 65,504."""
    ours, _ = models(adaptive_softmax_cutoff="6,20")
    loss = criterion(AdaptiveLossRBN, {})(ours.bfloat16(), sample())[0]
    assert loss.dtype == torch.float32


def test_no_target_of_an_adaptive_softmax():
    ours, _ = models(adaptive_softmax_cutoff="6,20")
    given = sample() | {"ntokens": 0}
    given["target"] = torch.ones_like(given["target"])
    assert criterion(AdaptiveLossRBN, {})(ours.train(), given)[:2] == (0, 0)


@torch.no_grad()
def test_other_losses_of_an_adaptive_softmax():
    """For validation: fairseq's probabilities of it have no gradient."""
    options = {"adaptive_softmax_cutoff": "6,20"}
    ours, theirs = (model.eval() for model in models(**options))
    for kind, settings in CRITERIONS.values():
        loss, _, log = criterion(kind, settings)(ours, sample())
        expected, _, other_log = criterion(fairseqs(kind), settings)(theirs, sample())
        assert_alike(loss, expected)
        assert_same_log(log, other_log)


def test_rows_without_a_target_have_no_loss():
    """A masked prefix, and a whole sentence: as fairseq, which leaves padding out."""
    ours, theirs = models()
    given = sample()
    given["target"][1, :3] = 1
    given["target"][4] = 1
    given["ntokens"] = int(given["target"].ne(1).sum())
    for kind, options in CRITERIONS.values():
        for training in (True, False):
            mine = criterion(kind, options).train(training)
            other = criterion(fairseqs(kind), options).train(training)
            loss, size, log = mine(ours.train(training), given)
            expected, other_size, other_log = other(theirs.train(training), given)
            assert_alike(loss, expected, kind.__name__)
            assert size == other_size
            assert_same_log(log, other_log)
            assert_same_gradients(gradients(ours, loss), gradients(theirs, expected))


def test_no_target_at_all():
    ours, _ = models()
    given = sample() | {"ntokens": 0}
    given["target"] = torch.ones_like(given["target"])
    for kind, options in CRITERIONS.values():
        for training in (True, False):
            loss = criterion(kind, options).train(training)(ours.train(training), given)[0]
            assert loss == 0
            assert not any(it.any() for it in gradients(ours, loss).values())


@EVERY
def test_targets_of_another_width_are_refused(kind, options):
    ours, _ = models()
    given = sample()
    given["target"] = torch.cat([given["target"], given["target"][:, :1]], 1)
    with pytest.raises(ValueError, match=r"`target` has shape \(7, 7\).*\(7, 6\)"):
        criterion(kind, options)(ours.train(), given)


@EVERY
def test_more_targets_than_rows_are_refused(kind, options):
    ours, _ = models()
    given = sample()
    given["net_input"]["prev_output_tokens"][3, 3:] = 1
    with pytest.raises(ValueError, match="the others would have no loss"):
        criterion(kind, options)(ours.train(), given)


@pytest.mark.parametrize("kind", [CrossEntropyRBN, AdaptiveLossRBN, CRFRBN])
def test_validation_counts_batches_of_one_token_a_sentence(kind):
    """Batch by batch, as in training; per token, also where tokens and sentences are as many."""
    logs = [
        {"loss": loss, "ntokens": tokens, "nsentences": size, "sample_size": size}
        for loss, tokens, size in ((8.0, 4, 4), (9.0, 12, 3), (2.0, 7, 1))
    ]
    with metrics.aggregate(new_root=True) as aggregate:
        for log in logs:
            kind.reduce_metrics([log])
    values = aggregate.get_smoothed_values()
    assert values["loss"] == pytest.approx(19 / 8 / math.log(2), abs=1e-3)
    assert values["nll_loss"] == pytest.approx(19 / 23 / math.log(2), abs=1e-3)
    if kind is not CRFRBN:
        assert values["ppl"] == pytest.approx(math.exp(19 / 23), abs=0.01)
