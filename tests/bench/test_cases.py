"""Batches that norms are timed on: those of fairseq's own iterator, and made-up padding."""

from pathlib import Path

import pytest
import torch
from fairseq import options, tasks

from rbn_fairseq.bench.cases import fixed_case
from rbn_fairseq.bench.replay import data_cases, name_of
from rbn_fairseq.tasks.translation_rbn import TranslationRBNTask


def test_batches_are_those_that_fairseq_trains_on(data_bin):
    parser = options.get_training_parser()
    words = [str(data_bin), "--arch", "transformer_tiny", "--optimizer", "adam", "--cpu"]
    args = options.parse_args_and_arch(parser, words)
    task = tasks.setup_task(args)
    task.load_dataset("train")
    # The limits and the multiple that fairseq-train has by default.
    batches = task.get_batch_iterator(
        task.dataset("train"), max_tokens=300, max_positions=(1024, 1024),
        ignore_invalid_inputs=True, required_batch_size_multiple=8, seed=1,
    ).next_epoch_itr(shuffle=False)  # fmt: skip
    wanted = {"source": [], "target": []}
    for sample in batches:
        inputs = sample["net_input"]
        wanted["source"].append((inputs["src_tokens"].shape, int(inputs["src_lengths"].sum())))
        wanted["target"].append((inputs["prev_output_tokens"].shape, sample["ntokens"]))
    cases = data_cases(str(data_bin), "numbers", 300, 0, 1)
    assert [case.name for case in cases] == ["numbers-source", "numbers-target"]
    for case, of_side in zip(cases, wanted.values(), strict=True):
        found = [(padding.shape, int((~padding).sum())) for padding in case.paddings]
        assert sorted(found) == sorted(of_side)
    # Some batches have padding, and others none, which the norms are then told.
    masks = [mask for _, _, mask in cases[0].batches("cpu")]
    assert {mask is None for mask in masks} == {True, False}
    assert all(mask is None or mask.any() for mask in masks)


def test_shapes_are_read_without_a_model(data_bin, monkeypatch):
    monkeypatch.setattr(TranslationRBNTask, "build_model", None)  # cannot be called
    assert data_cases(str(data_bin), "x", 300, 1, 1)[0].paddings


def test_another_seed_draws_others(data_bin):
    def draw(seed):
        return [p.shape for p in data_cases(str(data_bin), "x", 300, 9, seed)[0].paddings]

    first = draw(1)
    assert len(first) == 9 and draw(2) != first


@pytest.mark.parametrize("pads", [0, 10, 25, 50])
def test_made_up_batches_have_the_padding_that_they_are_named_for(pads):
    case = fixed_case(4096, 512, pads)
    (padding,) = case.paddings
    assert case.name == f"pads-{pads}/4096x512" and padding.numel() == 4096
    assert padding.float().mean() == pytest.approx(pads / 100, abs=0.005)  # rounded by sentence
    # At the ends of sentences, of which none is without a token.
    assert torch.equal(padding, padding.sort(dim=1).values) and not padding.all(1).any()


def test_positions_fill_whole_sentences():
    with pytest.raises(ValueError, match="--tokens must be multiples of 32, but one is 100"):
        fixed_case(100, 8)
    with pytest.raises(ValueError, match="--pads are percent .* at most 50, but one is 60"):
        fixed_case(64, 8, 60)


def test_names_of_data():
    assert name_of(Path("data/iwslt14/bin")) == "iwslt14"
    assert name_of(Path("data-bin/wmt16_en_de")) == "wmt16_en_de"
