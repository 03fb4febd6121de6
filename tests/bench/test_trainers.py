"""Trainers that are measured: their settings, their batches, what they must share."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq import options, tasks
from fairseq.models.transformer import TransformerModel

from rbn_fairseq.bench.trainers import (
    SETTINGS,
    build_all,
    data_cases,
    draw,
    fairseq_options,
    largest,
    make_trainer,
    name_of,
    read_config,
    read_settings,
    real_tokens,
    set_up,
)
from rbn_fairseq.norms import lay_out
from runs import TINY

COMMON = [*TINY, "--optimizer", "adam", "--max-tokens", "600"]


@pytest.fixture(scope="module")
def trainers(data_bin):
    settings = {
        "fairseq": [*COMMON, *fairseq_options(COMMON)],
        "layer": COMMON,
        "mixed": [*COMMON, "--length-mixing", "4"],
    }
    return build_all(settings, partial(make_trainer, str(data_bin), device="cpu"))


def ids(turns):
    return [[batch["id"].tolist() for batch in turn] for turn in turns]


@pytest.mark.parametrize("name", ["fairseq", "mixed"])
def test_real_tokens_are_the_words_and_ends_of_the_sentences(corpus, trainers, name):
    sides = [(corpus / f"train.{side}").read_text().splitlines() for side in ("de", "en")]
    (epoch,) = draw(trainers[name], 0, 1)
    for batch in epoch:
        words = [len(lines[number].split()) for lines in sides for number in batch["id"]]
        assert real_tokens([batch]) == sum(words) + len(words)
    assert real_tokens(epoch) == sum(real_tokens([batch]) for batch in epoch)


def test_turns_differ_and_are_the_same_where_batches_are(trainers):
    fairseq, layer, mixed = (ids(draw(trainer, 2, 3)) for trainer in trainers.values())
    assert fairseq == layer != mixed
    assert len({str(turn) for turn in layer}) == 3 and {len(turn) for turn in layer} == {2}


@pytest.mark.parametrize("name", ["layer", "mixed"])
def test_the_largest_batches_of_an_epoch(trainers, name):
    (epoch,) = draw(trainers[name], 0, 1)

    def padded(batch):
        inputs = batch["net_input"]
        return inputs["src_tokens"].numel() + inputs["prev_output_tokens"].numel()

    most, fullest = largest(trainers[name])
    assert padded(most) == max(map(padded, epoch))
    assert real_tokens([fullest]) == max(real_tokens([batch]) for batch in epoch)


@pytest.mark.parametrize(
    "options, named",
    [
        ("--max-tokens 599", "--max-tokens"),
        ("--seed 9", "--seed"),
        ("--fp16", "--fp16"),
    ],
)
def test_size_of_batches_seed_and_precision_are_shared(data_bin, options, named):
    def configure(arguments):
        return SimpleNamespace(cfg=read_config(str(data_bin), arguments, "cpu"))

    plain, other = COMMON, [*COMMON, *options.split()]
    with pytest.raises(ValueError, match=f"`other`: {named} "):
        build_all({"plain": plain, "other": other}, configure)
    assert list(build_all({"a": other, "b": other}, configure)) == ["a", "b"]


def test_the_monitors_of_a_task_are_off(data_bin, tmp_path):
    options = [*COMMON, "--norm-encoder", "batch", "--save-dir", str(tmp_path)]
    task = make_trainer(str(data_bin), options, "cpu").cfg.task
    assert task.no_tid and task.conditioning_interval == 0
    watched = [*options, "--conditioning-interval", "1"]
    assert set_up(str(data_bin), watched, "cpu")[0].task.conditioning_interval == 1


def test_a_setting_is_given_by_options_or_by_the_name_of_a_default():
    given = ["batch", "layer: --dropout 0.3", "fairseq"]
    settings = read_settings(given, COMMON)
    assert list(settings) == ["batch", "layer", "fairseq"]
    assert settings["batch"] == ["--norm-encoder", "batch"]
    assert settings["layer"] == ["--dropout", "0.3"]
    assert settings["fairseq"] == fairseq_options(COMMON)
    assert list(read_settings(SETTINGS, COMMON)) == ["fairseq", "layer", "batch", "rbn"]


@pytest.mark.parametrize(
    "options",
    [
        "--arch rbn_transformer_tiny_pre --share-all-embeddings",
        # The user's win over the architecture's.
        "--arch rbn_transformer_tiny --encoder-layers 1 --decoder-attention-heads 2 --dropout 0.25",
        "--arch rbn_transformer_iwslt_de_en --encoder-normalize-before --encoder-layers 1 "
        "--decoder-layers 1 --decoder-embed-dim 128",
    ],
)
def test_fairseqs_own_model_has_the_sizes_of_ours(data_bin, options):
    common = [*options.split(), "--optimizer", "adam", "--max-tokens", "600"]
    models = []
    for own in ([], fairseq_options(common)):
        cfg, task = set_up(str(data_bin), [*common, *own], "cpu")
        models.append(task.build_model(cfg.model))
    ours, fairseqs = models
    assert type(fairseqs) is TransformerModel
    shapes = [{name: x.shape for name, x in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1]
    for side in ("encoder", "decoder"):
        layers = [getattr(model, side).layers[0] for model in models]
        assert layers[0].self_attn.num_heads == layers[1].self_attn.num_heads
        assert layers[0].normalize_before == layers[1].normalize_before
        assert layers[0].dropout_module.p == layers[1].dropout_module.p


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
    replayed = [list(pair) for pair in zip(*(case.batches for case in cases), strict=True)]
    assert sorted(replayed) == sorted(wanted)
    assert any(len(set(lengths)) > 1 for lengths in cases[1].batches)  # sentences of many lengths
    assert name_of(Path("data/iwslt14/bin")) == "iwslt14"
