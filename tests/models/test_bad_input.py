"""Batches that no data set should make: they say what is wrong, or harm no other sentence."""

import pytest

from rbn_fairseq.criterions import LabelSmoothedCrossEntropyRBN
from small_models import (
    BATCH,
    FINALS,
    PRE,
    STILL,
    assert_alike,
    assert_same_gradients,
    build,
    everywhere,
    gradients,
    randomise,
    sample,
    task,
)

TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
NORMS = pytest.mark.parametrize(
    "norms",
    [everywhere("layer"), BATCH | FINALS, everywhere("instance"), {"norm_batch_length_bins": 2}
     | {"norm_encoder": "batch", "norm_encoder_final": "batch"}],
    ids=["layer", "batch", "instance", "bins"],
)  # fmt: skip


def model(norms):
    return randomise(build(**STILL, **PRE, **norms)).double()


def step(model, given, training):
    """Everything that a training step, or a validation, makes of a batch."""
    criterion = LabelSmoothedCrossEntropyRBN(task(), False, 0.1)
    loss, _, _ = criterion.train(training)(model.train(training), given)
    found = {"loss": loss}
    found |= {name: b.clone() for name, b in model.named_buffers() if "population" in name}
    return found | gradients(model, loss)


def names(norms):
    return [name for name, _ in model(norms).named_parameters()]


def assert_finite(found):
    for name, value in found.items():
        assert value.isfinite().all(), name


def without(given, row):
    """The batch without one sentence."""
    rest = [other for other in range(len(given["target"])) if other != row]
    return {
        "net_input": {name: it[rest] for name, it in given["net_input"].items()},
        "target": given["target"][rest],
        "ntokens": int(given["target"][rest].ne(1).sum()),
    }


def apart(norms):
    """Whether sentences do not see each other in training."""
    return not any("batch" in str(value) for value in norms.values())


@TRAINING
@NORMS
@pytest.mark.usefixtures("double_softmax")  # torch before 2.13 takes the loss from logits
def test_an_empty_target_has_no_loss(norms, training):
    given = sample(([7, 4, 5, 4], [3, 6, 0, 2]))
    found, others = (step(model(norms), it, training) for it in (given, without(given, 2)))
    assert_finite(found)
    if apart(norms) or not training:
        assert_alike(found["loss"], others["loss"])
        assert_same_gradients(*({n: it[n] for n in names(norms)} for it in (found, others)))
    evaluated, extra = model(norms).eval()(**given["net_input"])
    assert not evaluated[2].any() and not extra["attn"][0][2].any()


@TRAINING
@NORMS
def test_a_source_of_padding_harms_no_other_sentence(norms, training):
    """fairseq gives NaN for it; here its target attends to nothing, which is 0."""
    given = sample(([6, 4, 5, 4], [3, 6, 2, 5]))
    given["net_input"]["src_tokens"][1] = 1
    assert_finite(step(model(norms), given, training))
    rest, found = [0, 2, 3], []
    for it in (given, without(given, 1)):
        encoded = model(norms).train(training).encoder(it["net_input"]["src_tokens"], None)
        found.append(encoded["encoder_out"][0])
    assert_alike(found[0][:, rest], found[1])
    assert not found[0][:, 1].any()
    logits, others = (
        model(norms).eval()(**it["net_input"])[0] for it in (given, without(given, 1))
    )
    assert_alike(logits[rest], others)
    assert logits[1].isfinite().all()


@TRAINING
@NORMS
@pytest.mark.parametrize(
    "lengths",
    [([1], [1]), ([1, 1], [1, 1]), ([1], [0]), ([0], [1]), ([0], [0]), ([0, 3], [2, 0]), ([], [])],
    ids=["one token", "two", "no target", "no source", "nothing", "by turns", "no sentence"],
)
def test_hardly_anything(norms, lengths, training):
    for wider in (0, 2):
        given = sample(lengths, wider=wider)
        network = model(norms)
        assert_finite(step(network, given, training))
        x, extra = network.eval()(**given["net_input"])
        assert x.shape == (*given["target"].shape, 34) and x.isfinite().all()
        assert extra["attn"][0].shape == (
            *given["target"].shape,
            max(lengths[0], default=0) + wider,
        )
        encoded = network.encoder(given["net_input"]["src_tokens"], None)
        y, _ = network.decoder(given["net_input"]["prev_output_tokens"], encoded)
        assert_alike(y, x)


@TRAINING
def test_longer_than_there_are_positions(training):
    """Learned positions end; fairseq's data sets leave such sentences out."""
    network = build(encoder_learned_pos=True).train(training)
    with pytest.raises(IndexError):
        network(**sample(([60, 3], [2, 2]))["net_input"])
    assert build().train(training)(**sample(([60, 3], [70, 2]))["net_input"])[0].isfinite().all()
