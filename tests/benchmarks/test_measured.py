"""What is measured: norms, fairseq's batches, models of the same sizes, under equal conditions."""

from functools import partial

import numpy as np
import pytest
import torch
from fairseq.models.transformer import TransformerModel

import norms
import updates
from generation import Translator, placed_settings
from norms import Workload, time_norms
from runs import TINY
from trainers import build_all, draw, fairseq_options, largest, make_trainer, read_settings, set_up

BATCHES = [[3, 5], [4, 4, 4]]  # of two lengths, and of one
COMMON = [*TINY, "--optimizer", "adam", "--max-tokens", "600"]


def test_torch_batch_norm_is_the_same_norm():
    work = Workload([[8]], 8, depth=1)
    x = torch.randn(8, 8)
    (ours,), (other,) = work.stack("batch"), work.stack("torch-batch")
    torch.testing.assert_close(ours(x, work.layouts[0]), other(x))


def test_times_are_of_one_norm_on_one_batch(monkeypatch):
    # Every action takes 6 milliseconds: 3 norms, 2 batches.
    monkeypatch.setattr(norms, "milliseconds", lambda action, device: 6.0)
    layer, batch = time_norms(["layer", "batch"], "", Workload(BATCHES, 8, depth=3), 2)
    assert (layer["ms"], batch["ms"], layer["bench"]) == (1.0, 1.0, "norm")
    (layer,) = time_norms(["layer"], "", Workload(BATCHES, 8, training=False, depth=3), 2)
    assert (layer["ms"], layer["bench"]) == (1.0, "norm, evaluation")


@pytest.mark.parametrize("mixing", ["1", "4"])
def test_memory_is_measured_on_the_largest_batches_of_an_epoch(data_bin, mixing, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # one process all the same
    trainer = make_trainer(str(data_bin), [*COMMON, "--length-mixing", mixing], "cpu")
    assert trainer.cfg.task.no_tid and trainer.cfg.task.conditioning_interval == 0
    (epoch,) = draw(trainer, 0, 1)

    def positions(batch):
        return batch["net_input"]["src_tokens"].numel() + batch["target"].numel()

    def tokens(batch):
        return sum(int(x.ne(1).sum()) for x in (batch["net_input"]["src_tokens"], batch["target"]))

    most, fullest = largest(trainer)
    assert positions(most) == max(map(positions, epoch))
    assert tokens(fullest) == max(map(tokens, epoch))


@pytest.mark.parametrize("own", ["--max-tokens 599", "--seed 9"])
def test_size_of_batches_and_seed_are_shared(data_bin, own):
    settings = read_settings(["plain:", f"other: {own}"], COMMON)
    with pytest.raises(ValueError, match="`other`: --max-tokens"):
        build_all(settings, partial(make_trainer, str(data_bin), device="cpu"))


@pytest.mark.parametrize(
    "own",
    [
        "--arch rbn_transformer_tiny_pre --share-all-embeddings",
        # The user's win over the architecture's.
        "--arch rbn_transformer_tiny --encoder-layers 1 --decoder-attention-heads 2 --dropout 0.25",
    ],
)
def test_fairseqs_own_model_has_the_sizes_of_ours(data_bin, own):
    common = [*own.split(), "--optimizer", "adam", "--max-tokens", "600"]
    models = []
    for more in ([], fairseq_options(common)):
        cfg, task = set_up(str(data_bin), [*common, *more], "cpu")
        models.append(task.build_model(cfg.model))
    assert type(models[1]) is TransformerModel
    shapes = [{name: x.shape for name, x in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1]
    ours, fairseqs = (model.decoder.layers[0] for model in models)
    assert ours.self_attn.num_heads == fairseqs.self_attn.num_heads
    assert ours.normalize_before == fairseqs.normalize_before
    assert ours.dropout_module.p == fairseqs.dropout_module.p


@pytest.mark.parametrize("pre_norm", [False, True])
def test_norms_and_lengths_of_generation(data_bin, pre_norm):
    before = ["--encoder-normalize-before", "--decoder-normalize-before"] * pre_norm
    # Two encoder layers with two places, two decoder layers with three; behind them, in Pre-Norm.
    places = 12 if pre_norm else 10
    left = 1 if pre_norm else places  # where no linear layer follows
    wanted = {"layer": {"LayerNorm": places}, "batch": {"BatchNorm": places}}
    wanted |= {"folded": {"Affine": left}, "none": {}}
    for name, arguments in read_settings(placed_settings(pre_norm), [*COMMON, *before]).items():
        translator = Translator(str(data_bin), arguments, "cpu", beam=3, steps=4)
        assert translator.model.encoder.layers[0].normalize_before == pre_norm
        if name == "fairseq":
            assert type(translator.model) is TransformerModel
        else:
            kinds = [type(part).__name__ for part in translator.model.modules()]
            norms = {"LayerNorm", "BatchNorm", "Affine"}.intersection(kinds)
            assert {kind: kinds.count(kind) for kind in norms} == wanted[name]
    (hypotheses,) = translator.generate(translator.batches(1))
    assert {len(beam) for beam in hypotheses} == {3}
    assert {len(each["tokens"]) for beam in hypotheses for each in beam} == {4 + 1}  # and EOS


def test_times_are_those_of_a_real_token(data_bin, monkeypatch):
    """Where every turn takes as long, setting and round decide by their tokens alone."""
    trained, rows = [], []  # trainers and their batches, turn by turn
    monkeypatch.setattr(updates, "train", lambda *turn: trained.append(turn))
    monkeypatch.setattr(updates, "milliseconds", lambda action, device: (action(), 60.0)[1])
    monkeypatch.setattr(updates, "peak_bytes", lambda action, device: 1)
    monkeypatch.setattr(updates, "show", lambda measured, *_: rows.extend(measured))
    settings = ["--dropout 0.1", "--dropout 0.2", "--dropout 0.3 --length-mixing 4"]
    named = [f"{number}: {own}" for number, own in enumerate(settings, 1)]
    updates.main(data_bin, COMMON, named, rounds=3, updates=2)
    tokens = {name: [] for name in "123"}
    for trainer, batches in trained[1:]:  # the first warms up
        real = sum(int(batch["target"].ne(1).sum()) for batch in batches)  # 1: fairseq's padding
        real += sum(int(batch["net_input"]["src_tokens"].ne(1).sum()) for batch in batches)
        tokens[str(round(10 * trainer.cfg.model.dropout))].append(real)
    times = {row["norm"]: row for row in rows if row["bench"] == "train"}
    for name, (_, *counts) in tokens.items():
        assert len(counts) == 3
        ratios = [first / other for first, other in zip(tokens["1"][1:], counts, strict=True)]
        assert times[name]["tokens"] == pytest.approx(np.mean(counts) / 2)
        per_token = np.median([60 / number for number in counts])
        assert times[name]["ms"] / times[name]["tokens"] == pytest.approx(per_token)
        assert times[name]["ratio_to_layer"] == pytest.approx(np.median(ratios))
    assert times["2"]["ratio_to_layer"] == 1 != times["3"]["ratio_to_layer"]  # the same batches
