"""The criterion of texts: loss, accuracy, penalty and log, against a computation by hand."""

import math

import pytest
import torch
from fairseq.logging import metrics

from rbn_fairseq.criterions import ClassificationRBN
from rbn_fairseq.models.refusals import OF_CRITERION, refuse
from small_models import STILL, assert_alike, build, build_classifier, classified, label_task

pytestmark = pytest.mark.usefixtures("double_softmax")


def by_hand(model, sample):
    """Each text's loss, and how many have their own label as the likeliest."""
    labels = label_task().target_dictionary
    with torch.no_grad():
        logits = model(**sample["net_input"])[0]
    losses, right = [], 0
    for row, number in zip(logits.tolist(), sample["target"][:, 0].tolist(), strict=True):
        place = "123".index(labels[number])
        losses.append(math.log(sum(map(math.exp, row))) - row[place])
        right += max(row) == row[place]
    return losses, right


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_loss_and_accuracy(training):
    model, sample = build_classifier(**STILL).double().train(training), classified()
    expected, right = by_hand(model, sample)
    assert 0 < right < len(expected)
    criterion = ClassificationRBN(label_task()).train(training)
    loss, size, log = criterion(model, sample)
    assert size == log["sample_size"] == log["nsentences"] == len(expected)
    assert_alike(loss.detach(), torch.tensor(sum(expected), dtype=torch.double))
    each, _, _ = criterion(model, sample, reduce=False)
    assert_alike(each.detach(), torch.tensor(expected, dtype=torch.double))
    assert not log["loss"].requires_grad
    with metrics.aggregate() as logged:  # of two processes
        ClassificationRBN.reduce_metrics([log, log])
    values = logged.get_smoothed_values()
    assert values["accuracy"] == pytest.approx(100 * right / len(expected), abs=5e-4)
    assert values["loss"] == pytest.approx(sum(expected) / len(expected) / math.log(2), abs=5e-4)


@pytest.mark.parametrize(
    "name", ["cross_entropy", "label_smoothed_cross_entropy_with_rdrop", "sentence_prediction"]
)
def test_other_criterions_are_refused(name):
    class Given:
        _name = name

    with pytest.raises(ValueError, match="Give --criterion classification_rbn"):
        refuse(OF_CRITERION, Given, build_classifier())


def test_other_models_are_refused():
    class Given:
        _name = "classification_rbn"

    with pytest.raises(ValueError, match="does not go with rbn_transformer: .*--criterion label"):
        refuse(OF_CRITERION, Given, build())
    refuse(OF_CRITERION, Given, build_classifier())
