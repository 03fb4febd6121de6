"""Batches that norms are timed on: those of fairseq's own iterator, and made-up ones."""

from pathlib import Path

import pytest
from fairseq import options, tasks

from rbn_fairseq.bench.cases import fixed_case
from rbn_fairseq.bench.replay import data_cases, name_of
from rbn_fairseq.norms import lay_out
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
    wanted = []
    for sample in batches:
        inputs, pad = sample["net_input"], task.source_dictionary.pad()
        sides = inputs["src_tokens"], inputs["prev_output_tokens"]
        wanted.append([layout.counts for layout in lay_out(*(side.ne(pad) for side in sides))])
    cases = data_cases(str(data_bin), "numbers", 300, 0, 1)
    assert [case.name for case in cases] == ["numbers-source", "numbers-target"]
    found = [list(pair) for pair in zip(*(case.batches for case in cases), strict=True)]
    assert sorted(found) == sorted(wanted)
    assert any(len(set(lengths)) > 1 for lengths in cases[1].batches)  # sentences of many lengths


def test_shapes_are_read_without_a_model(data_bin, monkeypatch):
    monkeypatch.setattr(TranslationRBNTask, "build_model", None)  # cannot be called
    assert data_cases(str(data_bin), "x", 300, 1, 1)[0].batches


def test_another_seed_draws_others(data_bin):
    def draw(seed):
        return data_cases(str(data_bin), "x", 300, 9, seed)[0].batches

    first = draw(1)
    assert len(first) == 9 and draw(2) != first


def test_made_up_batches_have_the_tokens_that_they_are_named_for():
    case = fixed_case(4096, 512)
    (layout,) = case.layouts("cpu")
    assert (case.name, layout.rows) == ("4096x512", 4096)


def test_tokens_fill_whole_sentences():
    with pytest.raises(ValueError, match="--tokens must be multiples of 32, but one is 100"):
        fixed_case(100, 8)


def test_names_of_data():
    assert name_of(Path("data/iwslt14/bin")) == "iwslt14"
    assert name_of(Path("data-bin/wmt16_en_de")) == "wmt16_en_de"
