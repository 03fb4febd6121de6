"""`--checkpoint-activations`: training is the same as with all activations kept."""

import copy
import threading

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.models import layers as recomputation
from rbn_fairseq.norms import NORMS, dummy_batch, record_gaps, record_moments
from small_models import (
    BATCH,
    FINALS,
    HYBRID,
    PERI,
    PRE,
    SUB,
    batch,
    build,
    build_classifier,
    build_criterion,
    build_language_model,
    everywhere,
    randomise,
    sample,
)
from tagging import build_tagger

AGAIN = {"checkpoint_activations": True}
RANDOM = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
PLACEMENTS = {"post": {}, "pre": PRE | FINALS, "sub": SUB | FINALS} | {
    "peri": PERI,
    "hybrid": HYBRID,
    "deepnorm": {"norm_placement": "deepnorm"},
    "layerdrop": {"encoder_layerdrop": 0.4, "decoder_layerdrop": 0.4},
    "weight norm": {"norm_weight": "cwn"},
    "heads": {"norm_encoder": "batch@qkv:layer", "norm_decoder": "batch@qk:layer"},
    "length bins": {"norm_batch_length_bins": 2, "norm_decoder": "layer"},
}
PENALTY = {"rbn_mean_weight": 0.3, "rbn_std_weight": 0.7}
STATE_DEPENDENT = {"renorm", "power", "mabn", "un"}


def step(model, run=None, **options):
    """Everything that a training step leaves behind; ``run`` is what runs the backward."""
    torch.manual_seed(11)
    loss, _, log = build_criterion(**PENALTY, **options)(model, sample(([7, 4, 5], [3, 6, 1])))
    (run or (lambda backward: backward()))(loss.backward)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    number = torch.rand(1)  # whether later random numbers are the same too
    return {"loss": loss, **log, **gradients, **dict(model.named_buffers()), "random": number}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(torch.as_tensor(actual[name]), torch.as_tensor(value)), name


def statistics(model):
    return {n: b.clone() for n, b in model.named_buffers() if "population" in n}


@pytest.mark.parametrize("convention", ["paper", "official"])
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_step_is_the_same(placement, convention):
    options = BATCH | RANDOM | placement
    plain, again = (randomise(build(**options, **extra)).train() for extra in ({}, AGAIN))
    before = statistics(plain)
    for _ in range(2):
        expected = step(plain, rbn_convention=convention)
        assert expected["rbn_penalty"] > 0
        assert_same(step(again, rbn_convention=convention), expected)
    assert any(not torch.equal(value, before[name]) for name, value in statistics(plain).items())


@pytest.mark.parametrize("name", sorted(NORMS.keys() - STATE_DEPENDENT))
def test_every_norm_that_depends_on_the_batch_alone(name):
    results = []
    for extra in ({}, AGAIN):
        model = randomise(build(**everywhere(name), **PRE, **RANDOM, **extra)).train()
        torch.manual_seed(11)
        model(*batch())[0].square().mean().backward()
        results.append({n: p.grad for n, p in model.named_parameters()} | statistics(model))
    assert_same(*results)


@pytest.mark.parametrize("option", ["checkpoint_activations", "offload_activations"])
@pytest.mark.parametrize("name", sorted(STATE_DEPENDENT))
def test_norms_that_depend_on_running_statistics_are_refused(name, option):
    with pytest.raises(ValueError) as error:
        build(norm_encoder=f"layer@0:layer@ffn:batch+{name}", **{option: True})
    for word in ("--checkpoint-activations", "--offload-activations", f"`{name}`", "`batch`"):
        assert word in str(error.value)
    build(norm_encoder_final=name, **PRE, **{option: True})  # it is not in a layer


def test_a_schedule_is_refused():
    with pytest.raises(ValueError, match=r"--checkpoint-activations.*`repbn`"):
        build(norm_encoder="repbn", norm_repbn_layer_end=4, **AGAIN)


def kept(option):
    """Whether the input of fc2 outlives the forward, by layer; how often fc2 ran in a step."""
    model = build(**BATCH, **dict.fromkeys(option, True)).train()
    inputs = []
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.fc2.register_forward_pre_hook(
                lambda _, args: inputs.append(StorageWeakRef(args[0].untyped_storage()))
            )
    loss = model(*batch())[0].sum()
    alive = [not reference.expired() for reference in inputs]
    loss.backward()
    return alive, len(inputs)


@pytest.mark.parametrize("option", ["checkpoint_activations", "offload_activations"])
def test_activations_are_let_go_and_computed_again(option):
    assert kept(()) == ([True] * 4, 4)
    assert kept((option,)) == ([False] * 4, 8)


def test_what_is_offloaded_is_computed_again_in_every_kind_of_model():
    for make in (build, build_language_model, build_classifier, build_tagger):
        model = make(offload_activations=True)
        stack = model.encoder if hasattr(model, "encoder") else model.decoder
        assert stack.layers[0].recompute and stack.layers[0].offload
    with pytest.raises(ValueError, match="--offload-activations.*`power`"):
        build_language_model(norm_decoder="power", offload_activations=True)


def test_offloaded_are_the_inputs_of_the_layers(monkeypatch):
    offloaded = []

    def save_on_cpu():
        return saved_tensors_hooks(lambda x: offloaded.append(x) or x, lambda x: x)

    monkeypatch.setattr(recomputation, "save_on_cpu", save_on_cpu)
    options = BATCH | RANDOM
    expected = step(build(**options).train())
    step(build(**options, **AGAIN).train())
    assert not offloaded
    assert_same(step(build(**options, offload_activations=True).train()), expected)
    shapes = [tuple(x.shape) for x in offloaded if x.dim() == 2]
    # Rows of real tokens of the encoder's layers, and of the decoder's.
    assert shapes == [(16, 16)] * 2 + [(10, 16)] * 2


def on_another_thread(backward):
    """As torch runs the backward of a GPU: context variables are not this thread's."""
    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()


@pytest.mark.parametrize("run", [None, on_another_thread], ids=["same thread", "other thread"])
def test_dummy_batches_stay_dummies(run):
    # In Pre-Norm, where gradients pass by the norms: they do not pass through a dummy's.
    models = [randomise(build(**BATCH, **PRE, **extra)).train() for extra in ({}, AGAIN)]
    before = statistics(models[0])
    with dummy_batch():
        expected, actual = (step(model, run) for model in models)
    assert_same(actual, expected)
    for name, value in before.items():
        assert torch.equal(actual[name], value), name


def test_recorders_see_a_forward_once():
    model = build(**BATCH, **AGAIN).train()
    with record_gaps() as gaps, record_moments() as moments:
        model(*batch())[0].sum().backward()
    assert len(gaps) == len(moments) == 10


def test_copies_compute_their_own_activations():
    model = randomise(build(**BATCH, **RANDOM, **AGAIN)).train()
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False).fill_(torch.nan)
    actual = step(twin)
    assert_same(actual, step(randomise(build(**BATCH, **RANDOM)).train()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_training_is_the_same(data_bin, tmp_path):
    states = []
    for name, extra in (("plain", ()), ("again", ("--checkpoint-activations",))):
        runs.train(
            data_bin, tmp_path / name, "--norm-encoder", "batch", "--norm-decoder", "batch",
            "--rbn-mean-weight", 0.1, "--rbn-std-weight", 0.1, "--max-update", 4,
            "--update-freq", 2, "--encoder-layerdrop", 0.3, "--no-tid", *extra,
        )  # fmt: skip
        states.append(read_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"])
    assert_same(*states)
