"""Averaging checkpoints, and recalibrating what the average leaves wrong."""

import json
import shutil

import pytest
import torch

import runs
from command import completed, user_error
from rbn_fairseq.checkpoints.average import average_checkpoints, choose_last
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.diagnostics import recalibrate
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.measuring.batches import collate
from saved import load, training_batches

STATISTICS = (".running_mean", ".running_var")


@pytest.fixture(scope="module")
def averaged(rbn_run, data_bin, tmp_path_factory):
    path = tmp_path_factory.mktemp("average") / "average.pt"
    out = completed(
        "average", rbn_run, "--last", 2, "--output", path, "--recalibrate", "--data", data_bin
    ).output
    for epoch in (2, 3):
        assert f"averaged {rbn_run / f'checkpoint{epoch}.pt'}" in out
    return path


def test_average_is_the_mean(rbn_run):
    paths = [rbn_run / f"checkpoint{epoch}.pt" for epoch in (1, 2, 3)]
    models = [read_checkpoint(path)["model"] for path in paths]
    average = average_checkpoints(paths)
    assert average["model"].keys() == models[0].keys()
    for name, value in average["model"].items():
        if value.is_floating_point():
            mean = torch.stack([model[name].double() for model in models]).mean(0)
            # One rounding to fp32.
            torch.testing.assert_close(value.double(), mean, rtol=1e-7, atol=1e-12)
            assert value.dtype == models[0][name].dtype
        else:
            assert torch.equal(value, models[-1][name])
    assert "last_optimizer_state" in read_checkpoint(paths[0])
    assert "last_optimizer_state" not in average
    assert average["rbn_fairseq"] == {"averaged": [str(path) for path in paths]}


def test_average_of_halves_is_summed_in_fp64(tmp_path):
    # In half precision 60000 + 60000 overflows.
    paths = [tmp_path / f"{i}.pt" for i in range(2)]
    for path in paths:
        value = torch.full((3,), 60000.0, dtype=torch.half)
        extra = {"epoch": 3, "ema": {"w": value}, "ema_fp32_params": {"w": value.float()}}
        model = {"w": value, "version": torch.tensor([3])}
        write_checkpoint(path, {"model": model, "extra_state": extra})
    average = average_checkpoints(paths)
    assert average["extra_state"] == {"epoch": 3}  # the moving average is not of this model
    model = average["model"]
    assert model["w"].tolist() == [60000.0] * 3 and model["w"].dtype == torch.half
    assert model["version"].tolist() == [3]


def test_last_epochs(rbn_run, tmp_path, caplog):
    assert choose_last(rbn_run, 2) == [rbn_run / "checkpoint2.pt", rbn_run / "checkpoint3.pt"]
    assert not caplog.messages
    shutil.copy(rbn_run / "checkpoint1.pt", tmp_path / "checkpoint4.pt")  # of another training
    shutil.copy(rbn_run / "checkpoint3.pt", tmp_path)
    choose_last(tmp_path, 2)
    assert "are not of one training" in caplog.text
    with pytest.raises(ValueError, match="--last 6") as error:
        choose_last(rbn_run, 6)
    assert "1, 2, 3" in str(error.value) and str(rbn_run) in str(error.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no checkpoint1\.pt and so on"):
        choose_last(tmp_path / "empty", 1)
    with pytest.raises(ValueError, match="--last must be at least 1"):
        choose_last(rbn_run, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"model": {"w": torch.ones(4)}},
        {"model": {"v": torch.ones(3)}},
        {"model": {}},
        {"cfg": {"model": {"norm_encoder": "group"}}},
        {"cfg": {"model": {"norm_encoder": "layer", "encoder_normalize_before": True}}},
        {"cfg": {"model": {"norm_encoder": "layer", "norm_unit_embeddings": True}}},
        {"task_state": {"dictionaries": ["another"]}},
    ],
)
def test_different_models_are_refused(tmp_path, other):
    settings = {"norm_encoder": "layer", "encoder_normalize_before": False}
    settings |= {"norm_unit_embeddings": False, "norm_batch_momentum": 0.95, "dropout": 0.1}
    settings |= {"norm_power_warmup": 1, "norm_un_r_start": 1, "norm_sync": False}
    one = {
        "model": {"w": torch.ones(3)},
        "cfg": {"model": settings},
        "task_state": {"dictionaries": ["one"]},
    }
    write_checkpoint(tmp_path / "1.pt", one)
    resumed = {"norm_encoder": "layer", "norm_batch_momentum": 0.9, "dropout": 0.3}
    resumed |= {"norm_power_warmup": 9, "norm_un_r_start": 9, "norm_sync": True}
    write_checkpoint(tmp_path / "2.pt", {"model": one["model"], "cfg": {"model": resumed}})
    average_checkpoints([tmp_path / "1.pt", tmp_path / "2.pt"])
    write_checkpoint(tmp_path / "2.pt", one | other)
    with pytest.raises(ValueError, match="different models") as error:
        average_checkpoints([tmp_path / "1.pt", tmp_path / "2.pt"])
    assert "1.pt" in str(error.value) and "2.pt" in str(error.value)


def test_recalibration_changes_the_statistics_alone(averaged, rbn_run):
    plain = average_checkpoints([rbn_run / "checkpoint2.pt", rbn_run / "checkpoint3.pt"])["model"]
    model = read_checkpoint(averaged)["model"]
    changed = {name for name in model if not torch.equal(model[name], plain[name])}
    assert changed == {name for name in model if name.endswith(STATISTICS)} and changed


def test_without_running_statistics_there_is_nothing_to_recalibrate(plain_run, tmp_path):
    path = plain_run / "checkpoint_last.pt"
    result = completed("average", path, "--output", tmp_path / "average.pt", "--recalibrate")
    assert "nothing to recalibrate" in result.output
    assert "recalibrated" not in read_checkpoint(tmp_path / "average.pt").get("rbn_fairseq", {})


def test_statistics_are_those_of_recalibrate(averaged, data_bin):
    state = read_checkpoint(averaged)
    model, cfg, task = load(averaged, data_bin)
    for module in model.modules():  # nothing of what the file says may survive
        if hasattr(module, "running_mean"):
            module.set(torch.full_like(module.running_mean, 7), torch.ones_like(module.running_var))
    dataset, batches = training_batches(cfg, task)
    assert len(batches) < 200  # all of them: no sample is drawn
    recalibrate(model, collate(dataset, batches, model), EncoderDecoder().run_norms)
    note = {"batches": len(batches), "seed": 1, "population": "mean-of-batches"}
    assert state["rbn_fairseq"]["recalibrated"] == note
    own = model.state_dict()
    for name in own:
        if name.endswith(STATISTICS):
            torch.testing.assert_close(state["model"][name], own[name], rtol=1e-5, atol=1e-6)


def test_with_dropout(averaged, rbn_run, tmp_path):
    path = tmp_path / "dropped.pt"
    completed("average", rbn_run, "--last", 2, "--output", path, "--recalibrate", "--dropout")
    state = read_checkpoint(path)
    assert state["rbn_fairseq"]["recalibrated"]["dropout"] is True
    without = read_checkpoint(averaged)["model"]
    changed = {name for name in without if not torch.equal(without[name], state["model"][name])}
    assert changed == {name for name in without if name.endswith(STATISTICS)} and changed
    # `rbn cost` estimates both ways anew from the same batches, with the same masks.
    completed("cost", path, "--json", tmp_path / "cost.jsonl")
    rows = map(json.loads, (tmp_path / "cost.jsonl").read_text().splitlines())
    nll = {row["statistics"]: row["nll"] for row in rows}
    assert nll["running"] == pytest.approx(nll["recalibrated-dropout"], rel=1e-6)
    assert nll["running"] != pytest.approx(nll["recalibrated"], rel=1e-4)


def test_it_translates_and_is_deterministic(averaged, rbn_run, data_bin, tmp_path):
    assert len(runs.generate(data_bin, averaged)) == 61
    completed("average", rbn_run, "--last", 2, "--output", tmp_path / "again.pt", "--recalibrate")
    one, other = read_checkpoint(averaged)["model"], read_checkpoint(tmp_path / "again.pt")["model"]
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [path.name for path in tmp_path.iterdir()] == ["again.pt"]


def test_files_as_inputs(rbn_run, tmp_path):
    files = (rbn_run / "checkpoint1.pt", rbn_run / "checkpoint3.pt")
    completed("average", *files, "--output", tmp_path / "out.pt")
    expected = average_checkpoints([rbn_run / "checkpoint1.pt", rbn_run / "checkpoint3.pt"])
    model = read_checkpoint(tmp_path / "out.pt")["model"]
    assert all(torch.equal(model[name], value) for name, value in expected["model"].items())


@pytest.mark.parametrize(
    "arguments, words", [((), "with --last"), (("--last", 2), "one directory")], ids=["dir", "file"]
)
def test_last_and_inputs_go_together(rbn_run, tmp_path, arguments, words):
    inputs = rbn_run / "checkpoint1.pt" if arguments else rbn_run
    with pytest.raises(ValueError, match=words):
        completed("average", inputs, *arguments, "--output", tmp_path / "out.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [("--dropout",), ("--data", ".")])
def test_options_of_recalibration_without_it_are_refused(rbn_run, tmp_path, given):
    with pytest.raises(ValueError, match=f"{given[0]} goes with --recalibrate"):
        completed("average", rbn_run, "--last", 2, *given, "--output", tmp_path / "out.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["average", "recalibrate", "fold"])
def test_no_checkpoint_is_written_over_the_one_that_it_is_made_of(capsys, rbn_run, tmp_path, verb):
    path = tmp_path / "checkpoint1.pt"
    shutil.copy(rbn_run / "checkpoint1.pt", path)
    assert str(path) in user_error(capsys, verb, path, "--output", path, "--overwrite")
    assert path.read_bytes() == (rbn_run / "checkpoint1.pt").read_bytes()
