"""Training that starts from the weights of a model with other norms."""

import shutil
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import oracles
import runs
from rbn_fairseq.callbacks.init_from import InitFrom
from saved import assert_same_weights, last, load, training_batches
from trainings import training

BATCH = ("--norm-encoder", "batch")
# One update that moves neither weights nor statistics (a momentum of 1e-30 rounds away): what is
# saved is what training began with.
STILL = ("--lr", runs.NOTHING, "--max-update", 1, "--norm-batch-momentum", 1e-30)
QUICK = ("--no-tid", "--disable-validation")


def statistics(state):
    """Running mean and variance of every norm in a checkpoint, by the norm's name."""
    model, end = state["model"], ".population.running_mean"
    names = [name.removesuffix(end) for name in model if name.endswith(end)]
    kinds = ("running_mean", "running_var")
    return {name: [model[f"{name}.population.{kind}"] for kind in kinds] for name in names}


@pytest.fixture(scope="module")
def started(data_bin, plain_run, tmp_path_factory):
    """Save directory and log of an RBN model begun with fairseq's weights, and standing still."""
    directory = tmp_path_factory.mktemp("started")
    log = runs.train(
        data_bin, directory, *runs.RBN, *STILL, "--init-from", plain_run / "checkpoint_last.pt"
    )
    return directory, log


def test_weights_are_the_files(started, plain_run):
    ours, theirs = last(started[0])["model"], last(plain_run)["model"]
    assert {name for name in ours if ".population." not in name} == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def reference_statistics(path, data):
    """Mean over batches of every norm's statistics were it a batch norm, in fp64.

    In fairseq's own model, each of whose layer norms in the encoder a hook replaces by the
    definition of batch norm.
    """
    model, cfg, task = load(path, data, dropout=0.0)
    (dataset, batches), seen = training_batches(cfg, task), {}
    assert 1 < len(batches) < 200  # all of them: no sample is drawn
    model.double().train()  # in evaluation fairseq may take torch's fused layer

    def replace(name):
        def normalise(module, inputs, output):
            x, y = inputs[0], torch.zeros_like(output)  # (T, B, C)
            y[real], mean, var = oracles.batch_norm(x[real], module.weight, module.bias)
            seen.setdefault(name, []).append(torch.stack([mean, var]))
            return y

        return normalise

    for name, part in model.encoder.named_modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.register_forward_hook(replace(f"encoder.{name}"))
    with torch.no_grad():
        for batch in batches:
            source = dataset.collater([dataset[index] for index in batch])["net_input"]
            real = source["src_tokens"].ne(dataset.src_dict.pad()).T
            model.encoder(source["src_tokens"], source["src_lengths"])
    return len(batches), {name: torch.stack(rows).mean(0) for name, rows in seen.items()}


def test_statistics_are_those_of_the_training_batches(started, plain_run, data_bin):
    directory, log = started
    number, expected = reference_statistics(plain_run / "checkpoint_last.pt", data_bin)
    found = statistics(last(directory))
    assert found.keys() == expected.keys() and len(found) == 4
    for name, moments in expected.items():
        # fp32 through two layers against fp64.
        both = torch.stack(found[name]).double()
        torch.testing.assert_close(both, moments, rtol=1e-4, atol=1e-5)
    assert f"running statistics of 4 norms estimated on {number} training batches" in log
    # TID is measured behind the estimate, which is of the same batches.
    before = [row for row in runs.tid_rows(directory) if row["epoch"] == 0]
    assert len(before) == 4
    for row in before:
        assert max(row["mean_lag"], row["var_lag"]) < 1e-5


@pytest.fixture(scope="module")
def whole(data_bin, plain_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    start = plain_run / "checkpoint_last.pt"
    runs.train(data_bin, directory, *runs.RBN, *QUICK, "--init-from", start, "--max-update", 3)
    return directory


def test_training_moves_the_statistics_on(started, whole):
    begun, moved = (statistics(last(directory)) for directory in (started[0], whole))
    for name, (_, var) in begun.items():
        assert not torch.allclose(moved[name][1], var, rtol=1e-6)
        assert torch.allclose(moved[name][1], var, rtol=0.3)


def test_resume(data_bin, plain_run, tmp_path, whole):
    start = shutil.copy(plain_run / "checkpoint_last.pt", tmp_path / "start.pt")
    common = (data_bin, tmp_path / "save", *runs.RBN, *QUICK, "--init-from", start, "--max-update")
    runs.train(*common, 2)
    start.unlink()  # what resumes does not read it
    log = runs.train(*common, 3)
    assert "--init-from" not in log.split("num. expert model params")[1]
    assert_same_weights(last(tmp_path / "save")["model"], last(whole)["model"])


@pytest.mark.parametrize("epoch, done, times", [(1, 0, 1), (1, 5, 0), (2, 0, 0)])
def test_only_a_beginning_estimates_statistics_and_once(epoch, done, times):
    # A process that does not see the first one's save directory resumes without having the file.
    callback = InitFrom(training({"init_from": "FILE"}))
    callback.training.batches = SimpleNamespace(iterations_in_epoch=done)
    callback._lacking = ["norm"]
    with mock.patch.object(InitFrom, "_estimate") as estimate:
        callback.on_epoch_begin(epoch, None)
        callback.training.batches.iterations_in_epoch = 0
        callback.on_epoch_begin(1, None)
    assert estimate.call_count == times


def test_random_numbers_are_those_of_a_training_without_it(data_bin, tmp_path, started, whole):
    runs.train(
        data_bin, tmp_path / "save", *runs.RBN, *QUICK, "--max-update", 3,
        "--finetune-from-model", started[0] / "checkpoint_last.pt",
    )  # fmt: skip
    assert_same_weights(last(tmp_path / "save")["model"], last(whole)["model"])


def test_statistics_of_the_same_norms_are_taken(data_bin, rbn_run, tmp_path):
    log = runs.train(
        data_bin, tmp_path, *BATCH, *STILL, "--init-from", rbn_run / "checkpoint_last.pt"
    )
    assert "statistics of 0 norms estimated" in log
    theirs = last(rbn_run)["model"]
    for name, (mean, var) in statistics(last(tmp_path)).items():
        assert torch.equal(mean, theirs[f"{name}.population.running_mean"])
        assert torch.equal(var, theirs[f"{name}.population.running_var"])


@pytest.mark.parametrize(
    "other", [("--norm-encoder", "layer@0:batch"), ("--norm-decoder", "batch")]
)
def test_statistics_beside_other_norms_are_estimated(data_bin, rbn_run, tmp_path, other):
    log = runs.train(
        data_bin, tmp_path, *BATCH, *other, *STILL, "--init-from", rbn_run / "checkpoint_last.pt"
    )
    found = statistics(last(tmp_path))
    assert f"statistics of {len(found)} norms estimated" in log
    theirs = last(rbn_run)["model"]
    for name, (mean, _) in found.items():
        kept = theirs.get(f"{name}.population.running_mean")
        assert kept is None or not torch.equal(mean, kept)


@pytest.mark.parametrize(
    "option, named",
    [
        (("--encoder-attention-heads", 2), "--encoder-attention-heads 4, not 2"),
        (("--activation-fn", "gelu"), "--activation-fn relu, not gelu"),
        (("--no-scale-embedding",), "--no-scale-embedding False, not True"),
    ],
)
def test_models_of_another_function_are_refused(data_bin, plain_run, tmp_path, option, named):
    file = plain_run / "checkpoint_last.pt"
    with pytest.raises(ValueError, match=f"its model was trained with {named}"):
        runs.train(data_bin, tmp_path, *option, "--init-from", file, "--max-update", 1)


def test_embeddings_of_any_length_are_refused(data_bin, tmp_path):
    unit = (data_bin, tmp_path / "unit", "--norm-unit-embeddings", "--max-update", 1, *QUICK)
    runs.train(*unit)
    file = tmp_path / "unit" / "checkpoint_last.pt"
    fairseqs = ("--arch", "transformer", "--criterion", "label_smoothed_cross_entropy")
    for model in ((), fairseqs):
        with pytest.raises(ValueError, match="trained with --norm-unit-embeddings, without"):
            runs.train(data_bin, tmp_path / "plain", *model, "--init-from", file, "--max-update", 1)


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model", "--continue-once"])
def test_other_starts_are_refused(data_bin, tmp_path, plain_run, option):
    file = plain_run / "checkpoint_last.pt"
    with pytest.raises(ValueError, match=f"--init-from and {option} `{file}`"):
        runs.train(data_bin, tmp_path, "--init-from", file, option, file, "--max-update", 1)
    assert not list(tmp_path.iterdir())
