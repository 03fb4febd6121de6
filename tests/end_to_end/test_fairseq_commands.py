"""fairseq's commands on a generated corpus: train, resume, validate, average, translate, sweep."""

import re

import pytest
import torch

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.fold import fold_checkpoint
from rbn_fairseq.models import RBNTransformerModel


def validate(data_bin, path):
    out = runs.call(
        "validate", data_bin, "--user-dir", runs.USER_DIR, "--task", "translation_rbn",
        "--path", path, "--max-tokens", 1000, "--cpu", "--num-workers", 0, "--no-progress-bar",
    )  # fmt: skip
    return float(re.search(r"\| loss ([0-9.]+) ", out)[1])


def test_validate_finds_the_loss_that_training_logged(data_bin, rbn_run):
    logged = read_checkpoint(rbn_run / "checkpoint_last.pt")["extra_state"]["val_loss"]
    assert validate(data_bin, rbn_run / "checkpoint_last.pt") == logged


def test_validate_takes_a_folded_model(data_bin, rbn_run, tmp_path):
    """It has no batch norm left for the penalty of its training."""
    whole, folded = rbn_run / "checkpoint_last.pt", tmp_path / "folded.pt"
    write_checkpoint(folded, fold_checkpoint(whole))
    assert validate(data_bin, folded) == pytest.approx(validate(data_bin, whole), abs=2e-3)


def test_the_whole_test_set_is_translated(data_bin, rbn_run, corpus):
    # 61 sentences: not a multiple of 8, so that fairseq alone would drop 5.
    lines = (corpus / "test.en").read_text().splitlines()
    hypotheses = runs.generate(data_bin, rbn_run / "checkpoint_last.pt")
    assert sorted(hypotheses) == list(range(len(lines))) and len(lines) % 8 != 0


def test_translation_does_not_depend_on_batching(data_bin, rbn_run):
    path = rbn_run / "checkpoint_last.pt"
    together = runs.generate(data_bin, path)
    assert runs.generate(data_bin, path, "--batch-size", 1) == together


def test_ensemble(data_bin, rbn_run):
    one, two = rbn_run / "checkpoint1.pt", rbn_run / "checkpoint2.pt"
    both = runs.generate(data_bin, f"{one}:{two}")
    assert len(both) == len(runs.generate(data_bin, one))
    assert runs.generate(data_bin, f"{one}:{one}") == runs.generate(data_bin, one)


def test_interactive(data_bin, rbn_run, corpus):
    out = runs.call(
        "interactive", data_bin, "--user-dir", runs.USER_DIR, "--task", "translation_rbn",
        "--path", rbn_run / "checkpoint_last.pt", "--beam", 2, "--max-len-b", 20, "--cpu",
        "--input", corpus / "test.de", "--buffer-size", 100, "--max-tokens", 1000,
    )  # fmt: skip
    lines = [line for line in out.splitlines() if line.startswith("H-")]
    typed = {int(line[2:].split("\t")[0]): line.split("\t")[2] for line in lines}
    assert typed == runs.generate(data_bin, rbn_run / "checkpoint_last.pt")


def test_from_pretrained(data_bin, rbn_run, corpus):
    hub = RBNTransformerModel.from_pretrained(str(rbn_run), "checkpoint_last.pt", str(data_bin))
    source = (corpus / "test.de").read_text().splitlines()[0]
    expected = runs.generate(data_bin, rbn_run / "checkpoint_last.pt")[0]
    assert hub.translate(source, beam=2, max_len_b=20) == expected


def test_bleu_as_best_metric(data_bin, tmp_path):
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch", "--eval-bleu", "--eval-bleu-args",
        '{"beam": 1, "max_len_b": 20}', "--best-checkpoint-metric", "bleu",
        "--maximize-best-checkpoint-metric", "--max-update", 4, "--no-tid",
    )  # fmt: skip
    assert "| bleu " in log
    state = read_checkpoint(tmp_path / "checkpoint_best.pt")
    assert state["extra_state"]["best"] == state["extra_state"]["val_loss"]


def test_a_plain_fairseq_command_line_gains_rbn_with_a_new_optimizer(data_bin, tmp_path):
    # The README's way: a run made with fairseq's criterion goes on with the plugin's.
    runs.train(
        data_bin, tmp_path, "--criterion", "label_smoothed_cross_entropy",
        "--norm-encoder", "batch", "--max-update", 2, "--no-tid",
    )  # fmt: skip
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch", "--rbn-mean-weight", 0.1,
        "--max-update", 4, "--no-tid", "--reset-optimizer",
    )  # fmt: skip
    assert "rbn_penalty" in log


def test_weights_go_both_ways_between_fairseq_and_layer_norms(data_bin, tmp_path):
    criterion = ("--criterion", "label_smoothed_cross_entropy")
    common = ("--max-update", 2, "--no-tid", "--seed", 3, *criterion)
    runs.train(data_bin, tmp_path / "ours", *common)
    runs.train(
        data_bin, tmp_path / "theirs", *common, "--arch", "transformer_tiny",
        "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-attention-heads", 4,
        "--decoder-attention-heads", 4, "--dropout", 0.1,
    )  # fmt: skip
    models = [read_checkpoint(tmp_path / who / "checkpoint_last.pt") for who in ("ours", "theirs")]
    ours, theirs = (state["model"] for state in models)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    hypotheses = [
        runs.generate(data_bin, tmp_path / who / "checkpoint_last.pt") for who in ("ours", "theirs")
    ]
    assert hypotheses[0] == hypotheses[1]
