"""Trainers that are measured: their batches, and what they must share."""

import pytest

from rbn_fairseq.bench.named_settings import fairseq_options
from rbn_fairseq.bench.training import (
    check_batches,
    draw,
    largest,
    make_trainer,
    make_trainers,
    real_tokens,
    set_up,
)
from runs import TINY

COMMON = [*TINY, "--optimizer", "adam", "--max-tokens", "600"]


@pytest.fixture(scope="module")
def trainers(data_bin):
    settings = {
        "fairseq": [*COMMON, *fairseq_options(COMMON)],
        "layer": COMMON,
        "mixed": [*COMMON, "--length-mixing", "4"],
    }
    return make_trainers(str(data_bin), settings, "cpu")


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
        ("--batch-size 8", "--batch-size"),
        ("--required-batch-size-multiple 1", "--required-batch-size-multiple"),
        ("--seed 9", "--seed"),
        ("--fp16", "--fp16"),
        ("--bf16", "--bf16"),
    ],
)
def test_size_of_batches_seed_and_precision_are_shared(data_bin, options, named):
    plain, other = (
        set_up(str(data_bin), [*COMMON, *own], "cpu")[0] for own in ([], options.split())
    )
    with pytest.raises(ValueError, match=f"`other`: {named} "):
        check_batches({"plain": plain, "other": other})
    check_batches({"a": other, "b": other})


def test_a_refusal_names_its_setting(data_bin):
    with pytest.raises(ValueError, match="`x`: --update-freq"):
        make_trainers(str(data_bin), {"layer": COMMON, "x": [*COMMON, "--update-freq", "2"]}, "cpu")


def test_the_monitors_of_a_task_are_off(data_bin, tmp_path):
    options = [*COMMON, "--norm-encoder", "batch", "--save-dir", str(tmp_path)]
    task = make_trainer(str(data_bin), options, "cpu").cfg.task
    assert task.no_tid and task.conditioning_interval == 0
    watched = [*options, "--conditioning-interval", "1"]
    assert set_up(str(data_bin), watched, "cpu")[0].task.conditioning_interval == 1
