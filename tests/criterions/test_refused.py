"""Criterions that read padded batches: refused when a training starts, with the way out."""

import re
from types import SimpleNamespace

import pytest

import runs
from rbn_fairseq.models.refusals import OF_CRITERION, refuse
from small_models import build

LAYERS = ("--max-update", 1, "--no-tid", "--disable-validation", "--no-save")


@pytest.mark.parametrize(
    "options, named",
    [
        (
            ("--criterion", "label_smoothed_cross_entropy_with_rdrop", "--rdrop-alpha", 1),
            "label_smoothed_cross_entropy_with_rdrop",
        ),
        (
            ("--criterion", "label_smoothed_cross_entropy_with_alignment"),
            "label_smoothed_cross_entropy_with_alignment",
        ),
        (
            ("--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "5,9"),
            "--adaptive-softmax-cutoff",
        ),
        (
            ("--criterion", "cross_entropy", "--adaptive-softmax-cutoff", "5,9"),
            "--adaptive-softmax-cutoff",
        ),
        (
            ("--criterion", "label_smoothed_cross_entropy", "--ignore-prefix-size", 1),
            "--ignore-prefix-size",
        ),
    ],
)
def test_what_reads_padded_batches_is_refused(data_bin, tmp_path, options, named):
    # adaptive_loss knows no label smoothing, which the other trainings of the tests have.
    arguments = runs.train_arguments(data_bin, tmp_path, *LAYERS, *options)
    if "adaptive_loss" in options or "cross_entropy" in options:
        place = arguments.index("--label-smoothing")
        del arguments[place : place + 2]
    if "--adaptive-softmax-cutoff" in options:
        arguments.remove("--share-all-embeddings")
    with pytest.raises(ValueError, match=named) as refused:
        runs.call("train", *arguments)
    assert "rows of real tokens" in str(refused.value)


def test_ours_takes_a_prefix(data_bin, tmp_path):
    log = runs.train(data_bin, tmp_path, *LAYERS, "--ignore-prefix-size", 1, "--report-accuracy")
    assert re.search(r"\| accuracy [\d.]+ \|", log)


def test_a_loss_of_clusters_is_refused_for_an_ordinary_softmax():
    adaptive = SimpleNamespace(_name="adaptive_loss_rbn")
    with pytest.raises(ValueError, match="ordinary softmax: give --adaptive-softmax-cutoff"):
        refuse(OF_CRITERION, adaptive, build())
    refuse(OF_CRITERION, adaptive, build(adaptive_softmax_cutoff="5,9"))
