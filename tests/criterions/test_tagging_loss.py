"""The criterion of sequence tagging: its loss, and F1 of a whole set as seqeval computes it."""

import math
from statistics import mean

import pytest
import torch
from fairseq.logging import metrics
from seqeval.metrics import f1_score, precision_score, recall_score

from rbn_fairseq.criterions import CRFRBN, RBNPenaltyConfig
from rbn_fairseq.criterions.penalty import gap_terms
from rbn_fairseq.norms import record_gaps
from small_models import STILL, assert_alike, label_task
from tagging import build_tagger, tagged

BIO = ("O", "B-X", "I-X", "B-Y", "I-Y")
BMES = ("O", "B-X", "M-X", "E-X", "S-X", "S-Y")
LENGTHS = ([5, 2, 7], [1], [9, 9, 3, 4], [6, 8])


def criterion(tags=BIO, sentence_avg=False):
    return CRFRBN(label_task(tags), sentence_avg)


@pytest.mark.parametrize("sentence_avg", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_loss(training, sentence_avg):
    tagger = build_tagger(BIO, **STILL).double().train(training)
    given = tagged([5, 2, 7], BIO)
    nll = tagger(**given["net_input"], tags=given["target"]).nll
    ours = criterion(sentence_avg=sentence_avg).train(training)
    loss, size, log = ours(tagger, given)
    assert_alike(loss, nll.sum())
    assert_alike(ours(tagger, given, reduce=False)[0], nll)
    assert size == log["sample_size"] == (3 if sentence_avg else 14)
    assert log["ntokens"] == 14 and log["nsentences"] == 3
    assert loss.requires_grad and not log["loss"].requires_grad
    assert ("_gold" in log) is not training
    with metrics.aggregate() as logged:
        ours.reduce_metrics([log, log])
    values = logged.get_smoothed_values()
    bits = float(nll.detach().sum()) / math.log(2)
    assert values["loss"] == pytest.approx(bits / size, abs=1e-3)
    assert values["nll_loss"] == pytest.approx(bits / 14, abs=1e-3)


@pytest.mark.parametrize("tags", [BIO, BMES], ids=["BIO", "BMES"])
@torch.no_grad()
def test_f1_is_that_of_the_whole_set(tags):
    """Summed over batches, whose mean is another number; tags are random, many out of order."""
    tagger = build_tagger(tags, **STILL).eval()
    ours = criterion(tags).eval()
    words = label_task(tags).target_dictionary
    # Random gold tags; what is predicted is the same, but for every third token, and for <unk>, as
    # which an untrained model tags many; it is no entity.
    batches = [tagged(lengths, tags, seed=seed) for seed, lengths in enumerate(LENGTHS)]
    predicted, gold, logs = [], [], []
    tagger.decode = lambda output: best  # noqa: F821 - that of the batch below
    for given in batches:
        best = []
        for row in given["target"].tolist():
            row = [number for number in row if number != 1]
            gold.append([words[number] for number in row])
            best.append([4 if place % 3 == 2 else tag for place, tag in enumerate(row)])
            predicted.append([words[number] for number in best[-1]])
            best[-1] = [3 if tag == 4 and place % 2 else tag for place, tag in enumerate(best[-1])]
        logs.append(ours(tagger, given)[2])
    expected = {
        "f1": f1_score(gold, predicted),
        "precision": precision_score(gold, predicted),
        "recall": recall_score(gold, predicted),
    }
    assert 0.1 < expected["f1"] < 0.9 and len({*expected.values()}) == 3
    with metrics.aggregate(new_root=True) as by_batch:  # as in training's validation
        for log in logs:
            ours.reduce_metrics([log])
    with metrics.aggregate(new_root=True) as at_once:  # as fairseq-validate
        ours.reduce_metrics(logs)
    with metrics.aggregate(new_root=True) as of_processes:  # whose sums are tensors
        sums = {name: sum(torch.tensor(log[name]) for log in logs) for name in logs[0]}
        ours.reduce_metrics([sums])
    for logged in (by_batch, at_once, of_processes):
        values = logged.get_smoothed_values()
        for name, value in expected.items():
            assert values[name] == pytest.approx(100 * value, abs=1e-3)
        assert not [name for name in values if name.startswith("_")]
    means = mean(2 * log["_correct"] / max(1, log["_predicted"] + log["_gold"]) for log in logs)
    assert abs(means - expected["f1"]) > 0.01


def test_no_entity_at_all():
    with metrics.aggregate() as logged:
        none = {"loss": 1.0, "sample_size": 2, "ntokens": 2}
        counts = dict.fromkeys(("_correct", "_predicted", "_gold"), 0)
        CRFRBN.reduce_metrics([none | counts])
    values = logged.get_smoothed_values()
    assert values["f1"] == values["precision"] == values["recall"] == 0


def test_the_penalty_is_added_in_training_alone():
    tagger = build_tagger(BIO, **STILL, norm_encoder="batch").double()
    ours, given = criterion(), tagged([5, 2, 7], BIO)
    ours.rbn = RBNPenaltyConfig(rbn_mean_weight=0.3, rbn_std_weight=0.7)
    state = {name: value.clone() for name, value in tagger.state_dict().items()}
    with record_gaps() as gaps:
        nll = tagger.train()(**given["net_input"], tags=given["target"]).nll.sum()
    terms = gap_terms(gaps, "paper")
    tagger.load_state_dict(state)
    loss, _, log = ours.train()(tagger, given)
    penalty = 0.3 * terms.mean + 0.7 * terms.std
    assert_alike(loss, nll + penalty)
    assert penalty > 1e-3 and log["loss"] == pytest.approx(float(nll.detach()))
    loss, _, log = ours.eval()(tagger.eval(), given)
    assert loss == log["loss"] and "rbn_penalty" not in log
