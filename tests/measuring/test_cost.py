"""Discrepancy cost, against fairseq-validate and models whose population is the batch's."""

import copy
import dataclasses
import math
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.diagnostics import batch_norms, collect_moments, population_norms, recalibrate
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.measuring.batches import bucketed_batches, collate
from rbn_fairseq.measuring.cost import (
    Likelihood,
    compare_statistics,
    cost_of_checkpoint,
    cost_records,
    likelihood,
)
from rbn_fairseq.measuring.session import open_session
from rbn_fairseq.models.placing import binned, set_length_bins
from rbn_fairseq.norms import BatchNorm, LengthBins


@pytest.fixture(scope="module")
def session(rbn_run):
    return open_session(rbn_run / "checkpoint2.pt")


@pytest.fixture(scope="module")
def padding(session):
    return session.task.target_dictionary.pad()


WITHOUT_BINS = [
    "running", "recalibrated", "recalibrated-dropout", "pooled", "length-conditional", "batch",
    "batch-random",
]  # fmt: skip
BINS = LengthBins(np.array([4, 6, 12.0]), np.array([4, 10.0]))


def samples(session, number=None):
    """Batches of 20; the 60 sentences would fit into one."""
    dataset, iterator = session.validation()
    (sentences,) = iterator.frozen_batches
    batches = [sentences[start : start + 20] for start in (0, 20, 40)]
    return list(collate(dataset, batches[:number], session.model))


def training(session):
    return list(collate(session.dataset, session.iterator.frozen_batches[:5], session.model))


def moments(session, bins=None, model=None):
    """Return batch statistics without and with dropout."""
    model = model or session.model
    run = EncoderDecoder().run_norms
    with binned(model, bins):
        norms = population_norms(model)
        return [collect_moments(model, training(session), run, on, norms) for on in (False, True)]


@pytest.fixture(scope="module")
def found(session, padding):
    """Likelihoods of every way, with dropout's masks by a seed."""
    torch.manual_seed(1)
    arguments = *moments(session), lambda name: samples(session), padding
    return compare_statistics(session.model, *arguments)


def test_running_is_what_fairseq_validates(found, rbn_run, data_bin):
    path = rbn_run / "checkpoint2.pt"
    log = runs.evaluate("validate", data_bin, path, "--max-tokens", 300)
    nll = float(re.search(r"\| nll_loss ([\d.]+)", log)[1])
    assert found["running"].nll == pytest.approx(nll, abs=0.0006)  # printed with three decimals
    assert found["running"].sentences == 60


def test_validation_sets_that_training_combines(rbn_run, data_bin, tmp_path):
    for path in data_bin.iterdir():
        shutil.copy(path, tmp_path)
        if path.name.startswith("valid."):
            shutil.copy(path, tmp_path / path.name.replace("valid.", "valid1."))
    session = open_session(rbn_run / "checkpoint2.pt", tmp_path)
    assert len(session.validation()[0]) == 60
    session.cfg.dataset.combine_valid_subsets = True  # as the training's options say
    assert len(session.validation()[0]) == 120


def test_likelihood_is_cross_entropy_without_padding(session, padding):
    model = session.model.eval()
    total, tokens = 0.0, 0
    for sample in samples(session):
        for logits, target in zip(model(**sample["net_input"])[0], sample["target"], strict=True):
            real = target[target != padding]
            total += F.cross_entropy(logits[target != padding], real, reduction="sum").item()
            tokens += len(real)
    found = likelihood(model, samples(session), padding)
    assert found == (pytest.approx(total / tokens / math.log(2), rel=1e-5), tokens, 60)  # fp32


def without_dropout(model):
    model = copy.deepcopy(model)
    for part in model.modules():
        if hasattr(part, "p"):
            part.p = 0.0
    return model


def test_batch_is_a_population_that_is_the_batchs(session, padding, found):
    total, tokens = 0.0, 0
    for sample in samples(session):
        model = without_dropout(session.model).train()
        for norm in batch_norms(model).values():
            norm.population.momentum = 1.0
        with torch.no_grad():
            model(**sample["net_input"])
        one = likelihood(model.eval(), [sample], padding)
        total, tokens = total + one.nll * one.tokens, tokens + one.tokens
    assert found["batch"].nll == pytest.approx(total / tokens, rel=1e-5)  # fp32
    assert found["batch"].nll != pytest.approx(found["running"].nll, rel=1e-4)


@pytest.mark.parametrize(
    "name, estimate", [("recalibrated", "mean-of-batches"), ("pooled", "pooled")]
)
def test_estimates_take_the_place_of_the_running_statistics(
    session, padding, found, name, estimate
):
    model = copy.deepcopy(session.model)
    recalibrate(model, training(session), EncoderDecoder().run_norms, estimate)
    assert found[name] == likelihood(model.eval(), samples(session), padding)


def test_recalibrated_with_dropout_is_the_mean_of_what_training_saw(session, padding, found):
    torch.manual_seed(1)
    model = copy.deepcopy(session.model).train()
    norms = batch_norms(model).values()
    for norm in norms:
        norm.population.momentum = 1.0
    seen = []
    for sample in training(session):
        with torch.no_grad():
            model.encoder(sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"])
        seen.append([[part.double() for part in norm.population.buffers()] for norm in norms])
    for norm, statistics in zip(norms, zip(*seen, strict=True), strict=True):
        norm.population.set(*(sum(parts) / len(seen) for parts in zip(*statistics, strict=True)))
    expected = likelihood(model.eval(), samples(session), padding)
    assert found["recalibrated-dropout"].nll == pytest.approx(expected.nll, rel=1e-5)  # fp32
    assert abs(found["recalibrated"].nll - expected.nll) > 1e-4 * expected.nll


def test_of_data_in_several_parts_the_first_is_taken(rbn_run, data_bin, tmp_path, caplog):
    path = rbn_run / "checkpoint_last.pt"
    state = read_checkpoint(path)
    open_session(path, data_bin, state=state)
    assert "parts" not in caplog.text
    state["cfg"]["task"]["data"] = f"{data_bin}:{tmp_path}"
    open_session(path, state=state)
    assert f"2 parts, of which the first is taken: `{data_bin}`" in caplog.text


def test_files_of_embeddings_may_be_gone(rbn_run, data_bin):
    path = rbn_run / "checkpoint_last.pt"
    state = read_checkpoint(path)
    state["cfg"]["model"]["encoder_embed_path"] = "gone.txt"
    assert open_session(path, data_bin, state=state).update > 0


def test_statistics_of_several_processes_are_told(rbn_run, caplog):
    path = rbn_run / "checkpoint_last.pt"
    state = read_checkpoint(path)
    for processes in (1, 4):
        state["cfg"]["model"]["norm_sync"] = True
        state["cfg"]["distributed_training"]["distributed_world_size"] = processes
        assert "together" not in caplog.text
        open_session(path, state=state)
    assert "of 4 processes together" in caplog.text
    assert "`rbn tid --tid-batching joint:4`" in caplog.text


def test_the_seed_decides_on_dropout(session):
    records = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        records.append(cost_of_checkpoint(session, 3, seed=7))
    assert records[0] == records[1]


def test_each_way_has_its_batches(session, padding):
    asked = []

    def valid(name):
        asked.append(name)
        return samples(session, number=len(asked))

    found = compare_statistics(session.model, *moments(session, BINS), valid, padding, BINS)
    assert asked == list(found) == WITHOUT_BINS
    assert [value.sentences for value in found.values()] == [20, 40, 60, 60, 60, 60, 60]


def test_length_conditional_is_recalibrated_by_length(session, padding):
    model = copy.deepcopy(session.model)
    set_length_bins(model, BINS)
    recalibrate(model, training(session), EncoderDecoder().run_norms)
    expected = likelihood(model.eval(), samples(session), padding)
    arguments = *moments(session, BINS), lambda name: samples(session), padding
    found = compare_statistics(session.model, *arguments, BINS)
    assert found["length-conditional"] == expected != found["recalibrated"]
    without = compare_statistics(session.model, *arguments)
    assert found == without | {"length-conditional": expected}
    # A model that has bins: its own are what runs, the ordinary estimates are as ever.
    set_length_bins(model, LengthBins(np.array([4, 10, 12.0]), np.array([8, 12.0])))
    recalibrate(model, training(session)[1:], EncoderDecoder().run_norms)
    own = likelihood(model.eval(), samples(session), padding)
    ordinary = copy.deepcopy(session.model)
    recalibrate(ordinary, training(session)[1:], EncoderDecoder().run_norms)
    of_all = likelihood(ordinary.eval(), samples(session), padding)
    expected = found | {"running": own, "running-global": of_all}
    assert compare_statistics(model, *arguments, BINS) == expected
    assert len({own, of_all, found["running"]}) == 3


def test_validation_batches_are_cut_as_in_training(session):
    cfg = copy.deepcopy(session.cfg)
    cfg.dataset.max_tokens, cfg.dataset.max_tokens_valid = 200, 100_000
    dataset, iterator = dataclasses.replace(session, cfg=cfg).validation()
    batches = iterator.frozen_batches
    assert sorted(index for batch in batches for index in batch) == list(range(60))
    widths = [max(dataset.num_tokens(index) for index in batch) for batch in batches]
    areas = [width * len(batch) for width, batch in zip(widths, batches, strict=True)]
    assert 100 < max(areas) <= 200
    longest = [max(dataset.src_sizes[batch]) for batch in batches]
    assert longest == sorted(longest)
    cfg.dataset.max_tokens = 5  # shorter than sentences that a larger --max-tokens-valid took
    _, iterator = dataclasses.replace(session, cfg=cfg).validation()
    assert sum(map(len, iterator.frozen_batches)) == 60
    cfg.dataset.skip_invalid_size_inputs_valid_test = True
    _, iterator = dataclasses.replace(session, cfg=cfg).validation()
    assert sum(map(len, iterator.frozen_batches)) == 60


@pytest.mark.parametrize("value", [2, 100, "random"])  # 100: more than there are batches
def test_validation_batches_are_mixed_as_in_training(rbn_run, tmp_path, value):
    state = read_checkpoint(rbn_run / "checkpoint2.pt")
    state["cfg"]["dataset"]["max_tokens"] = 200
    state["cfg"]["task"]["length_mixing"] = value
    torch.save(state, tmp_path / "mixed.pt")
    _, iterator = open_session(tmp_path / "mixed.pt").validation()
    buckets, batches = bucketed_batches(iterator), iterator.frozen_batches
    assert len(batches) == len(buckets) > 3
    assert sorted(index for batch in batches for index in batch) == list(range(60))
    home = {index: place for place, batch in enumerate(buckets) for index in batch}
    fewest = min(len({home[index] for index in batch}) for batch in batches)
    assert fewest == min(value, len(buckets)) if value != "random" else fewest > 1


@pytest.mark.parametrize("mode", [True, False])
def test_leaves_the_model_alone(session, padding, mode):
    model = copy.deepcopy(session.model).train(mode)
    in_decoder = BatchNorm(len(model.decoder.layers[0].final_layer_norm.weight)).train(mode)
    model.decoder.layers[0].final_layer_norm = in_decoder  # those of the encoder are exchanged
    for norm in batch_norms(model).values():  # statistics that no estimate can come upon
        norm.population.set(torch.rand_like(norm.weight), 2 + torch.rand_like(norm.weight))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    both, norms = moments(session, BINS, model), batch_norms(model)

    def valid(way, name):
        if name == way:
            raise KeyError
        return []

    for way in ("length-conditional", "batch"):  # after other statistics have been set
        with pytest.raises(KeyError):
            compare_statistics(model, *both, partial(valid, way), padding, BINS)
        assert batch_norms(model) == norms
    compare_statistics(model, *both, lambda name: samples(session), padding, BINS)
    assert batch_norms(model) == norms
    assert all(part.training == mode for part in model.modules())
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_cost_is_against_both_ways_of_batching():
    values = [Likelihood(nll, 10, 2) for nll in (4.0, 4.25, 3.75, 4.5, 3.625, 3.5, 3.75)]
    records = cost_records(dict(zip(WITHOUT_BINS, values, strict=True)))
    assert [record["cost"] for record in records] == [0.5, 0.75, 0.25, 1.0, 0.125, 0.0, 0.25]
    against_random = [0.25, 0.5, 0.0, 0.75, -0.125, -0.25, 0.0]
    assert [record["cost_random"] for record in records] == against_random
    assert {(record["tokens"], record["sentences"]) for record in records} == {(10, 2)}
