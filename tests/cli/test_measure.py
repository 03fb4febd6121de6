"""The verbs `rbn tid` and `rbn cost`: what they print, write and refuse."""

import json
import shutil

import pytest
import torch

import runs
from command import completed, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.cli.options import choose_checkpoints
from rbn_fairseq.diagnostics import TID, average_tid

BATCHINGS = ["as-trained", "random", "mixed:4"]


def measured(verb, *arguments, tmp_path):
    result = completed(verb, *arguments, "--json", tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    return result.output, [json.loads(line) for line in lines]


def cells(output, *words):
    """The row of a table in which all these words stand."""
    rows = [line.split("│")[1:-1] for line in output.splitlines() if "│" in line]
    found = [row for row in rows if all(word in "".join(row) for word in words)]
    assert len(found) == 1, (words, found)
    return [cell.strip() for cell in found[0]]


@pytest.fixture(scope="module")
def tids(rbn_run, tmp_path_factory):
    options = [word for batching in BATCHINGS for word in ("--tid-batching", batching)]
    directory = tmp_path_factory.mktemp("tid")
    return measured("tid", rbn_run / "checkpoint3.pt", *options, tmp_path=directory)


def tid_of(lines, batching, place, name="tid"):
    """TID of the last layer (0) or the average (1)."""
    values = {
        line["layer"]: TID(line[f"mean_{name}"], line[f"var_{name}"])
        for line in lines
        if line["batching"] == batching
    }
    return list(values.values())[-1] if place == 0 else average_tid(values)


def test_tid_of_every_batching(tids, rbn_run):
    output, lines = tids
    layers = {row["layer"] for row in runs.tid_rows(rbn_run)}
    assert [line["batching"] for line in lines] == [b for b in BATCHINGS for _ in layers]
    assert all(len({line[key] for line in lines}) == 1 for key in ("update", "batches"))
    for batching in BATCHINGS:
        for place, word in enumerate(("last layer", "average of")):
            row = cells(output, f" {batching} ", word)
            expected = [
                " / ".join(f"{100 * value:.2f}" for value in tid_of(lines, batching, place, name))
                for name in ("tid", "conditional_tid")
            ]
            assert row[-2:] == expected


def test_tid_given_the_length(tids):
    of_all, given_length = (
        tid_of(tids[1], "as-trained", 1, name).mean for name in ("tid", "conditional_tid")
    )
    assert given_length < of_all / 2  # 0.37: most of it is that the sentences are of like length
    assert {line["length_groups"] for line in tids[1]} == {16}


def test_tid_of_one_batch_has_no_error(rbn_run):
    output = completed("tid", rbn_run / "checkpoint3.pt", "--batches", 1).output
    assert "on 1 of " in output and "nan" not in output and "UserWarning" not in output


@pytest.mark.parametrize("value", [4, "4", "random"])  # an integer: of an older version
def test_batchings_of_a_run_with_length_mixing(tids, rbn_run, tmp_path, monkeypatch, value):
    monkeypatch.setenv("COLUMNS", "200")
    state = read_checkpoint(rbn_run / "checkpoint3.pt")
    state["cfg"]["task"]["length_mixing"] = value
    torch.save(state, tmp_path / "checkpoint3.pt")
    names = [*BATCHINGS, "joint:2"]
    options = [word for batching in names for word in ("--tid-batching", batching)]
    _, lines = measured("tid", tmp_path / "checkpoint3.pt", *options, tmp_path=tmp_path)
    means, bucketed = (
        [tid_of(one, name, 1).mean for name in BATCHINGS] for one in (lines, tids[1])
    )
    assert means[1:3] == bucketed[1:3]  # drawn from the batches of fairseq all the same
    assert means[0] < 0.8 * bucketed[0] and means[0] != means[2]  # mixed too, in another draw
    assert tid_of(lines, "joint:2", 1).mean < means[0]  # of these, not of fairseq's


def test_joint_batches(rbn_run, tmp_path):
    options = ("--tid-batching", "as-trained", "--tid-batching", "joint:4", "--batches", 0)
    _, lines = measured("tid", rbn_run / "checkpoint3.pt", *options, tmp_path=tmp_path)
    alone, joint = (tid_of(lines, name, 0) for name in ("as-trained", "joint:4"))
    assert joint.mean < 0.8 * alone.mean
    numbers = {line["batching"]: line["total_batches"] for line in lines}
    assert numbers["joint:4"] == pytest.approx(numbers["as-trained"] / 4, abs=0.75)
    state = read_checkpoint(rbn_run / "checkpoint3.pt")
    state["cfg"]["dataset"]["grouped_shuffling"] = True
    torch.save(state, tmp_path / "grouped.pt")
    _, lines = measured("tid", tmp_path / "grouped.pt", *options, "--overwrite", tmp_path=tmp_path)
    assert tid_of(lines, "joint:4", 0).mean > 1.1 * joint.mean  # those joined are of like length


def test_epochs_against_the_running_statistics(rbn_run, tmp_path):
    options = ("--batches", 4, "--population", "running")
    _, lines = measured("tid", rbn_run, *options, tmp_path=tmp_path)
    assert {line["epoch"] for line in lines} == {1, 2, 3}
    for line in lines:
        assert line["mean_conditional_tid"] is line["length_groups"] is None
        assert line["mean_lag"] == 0  # from themselves


def test_length_bucketing_makes_tid(tids):
    means = [tid_of(tids[1], batching, 1).mean for batching in BATCHINGS]
    assert means[0] > means[2] > means[1]


def test_closed_form_is_of_the_batches_tokens(tids, data_bin):
    closed = {line["batching"]: line["independent_mean_tid"] for line in tids[1]}
    # Batches have the same numbers of tokens, but for the last: those of random batches are off
    # by half a sentence of at most 40 in 1000.
    assert closed["random"] == pytest.approx(closed["as-trained"], rel=0.02)
    for line in tids[1]:
        expected = line["independent_mean_tid"] / 2**0.5
        assert line["independent_var_tid"] == pytest.approx(expected, rel=1e-9)


def test_as_trained_is_the_default(rbn_run, tmp_path):
    output, lines = measured("tid", rbn_run / "checkpoint2.pt", tmp_path=tmp_path)
    row = cells(output, "average of 4 layers")
    assert (
        row[:3] == ["checkpoint2.pt", str(lines[0]["update"]), "average of 4 layers"]
        and len(row) == 5
    )
    assert "given length" in output and "…" not in output
    assert {line["batching"] for line in lines} == {"as-trained"}


def test_files_of_one_name_are_told_apart(rbn_run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    other = tmp_path / "checkpoint1.pt"
    shutil.copy(rbn_run / "checkpoint2.pt", other)
    arguments = (rbn_run / "checkpoint1.pt", other, "--batches", 2)
    output, lines = measured("tid", *arguments, tmp_path=tmp_path)
    assert len({line["update"] for line in lines}) == 2
    assert {line["checkpoint"] for line in lines} == {str(path) for path in arguments[:2]}
    assert str(rbn_run / "checkpoint1.pt") in output and str(other) in output


@pytest.mark.parametrize("mixing", ["1", "4"])
def test_cost(rbn_run, tmp_path, mixing):
    path = tmp_path / "checkpoint3.pt"
    state = read_checkpoint(rbn_run / "checkpoint3.pt")
    state["cfg"]["dataset"]["max_tokens"] = 200  # or the 60 sentences would be one batch
    state["cfg"]["task"]["length_mixing"] = mixing
    torch.save(state, path)
    output, lines = measured("cost", path, "--batches", 12, tmp_path=tmp_path)
    explained = "length-conditional: no cost of inference after --length-mixing"
    assert (explained in " ".join(output.split())) == (mixing != "1")
    names = ["running", "recalibrated", "recalibrated-dropout", "pooled", "length-conditional",
             "batch", "batch-random"]  # fmt: skip
    assert [line["statistics"] for line in lines] == names
    nll = {line["statistics"]: line["nll"] for line in lines}
    assert len(set(nll.values())) == 7
    for line in lines:
        binned = (3, [4, 6, 10, 12]) if line["statistics"] == "length-conditional" else (None, None)
        assert (line.get("length_bins"), line.get("length_edges")) == binned
    for line in lines:
        name = line["statistics"]
        assert (line["checkpoint"], line["sentences"]) == (str(path), 60)
        assert line["tokens"] == lines[0]["tokens"] > 60
        assert line["cost"] == nll[name] - nll["batch"]
        assert line["cost_random"] == nll[name] - nll["batch-random"]
        row = cells(output, f" {name} ")
        figures = (line["nll"], line["cost"], line["cost_random"])
        assert row[1:] == [str(line["update"]), name, *(f"{figure:.4f}" for figure in figures)]


def test_cost_of_norms_with_quadratic_means_in_both_stacks(data_bin, tmp_path):
    encoder, decoder = "groupscale+power", runs.decoder_plans("mabn", 2)[0]
    runs.train(
        data_bin, tmp_path, "--norm-encoder", encoder, "--norm-decoder", decoder,
        "--max-update", 2, "--no-tid", "--disable-validation", "--no-epoch-checkpoints",
    )  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    _, lines = measured("cost", path, "--batches", 3, tmp_path=tmp_path)
    nll = {line["statistics"]: line["nll"] for line in lines}
    assert "length-conditional" not in nll
    assert nll["running"] != nll["recalibrated"] == pytest.approx(nll["pooled"], rel=0.1)


def test_the_last_checkpoint_is_measured_where_it_is_the_newest(tmp_path):
    def labels(**updates):
        for name, number in updates.items():
            state = {"model": {}, "optimizer_history": [{"num_updates": number}]}
            write_checkpoint(tmp_path / f"checkpoint{name}.pt", state)
        return [label for label, _ in choose_checkpoints([tmp_path])]

    with pytest.raises(ValueError, match="has no checkpoint of a training"):
        labels()
    assert labels(_last=9) == ["last"]  # of --no-epoch-checkpoints
    assert labels(_last=20, **{"1": 10, "2": 20}) == ["1", "2"]
    assert labels(_last=25) == ["1", "2", "last"]  # of --max-update within an epoch


@pytest.fixture(scope="module")
def layer_norms(data_bin, tmp_path_factory):
    directory = tmp_path_factory.mktemp("layer")
    runs.train(data_bin, directory, "--max-update", 1, "--no-epoch-checkpoints")
    return directory / "checkpoint_last.pt"


@pytest.mark.parametrize("verb", ["tid", "cost"])
def test_models_without_running_statistics(capsys, layer_norms, verb):
    capsys.readouterr()
    assert "has no norm with running statistics" in user_error(capsys, verb, layer_norms)


@pytest.mark.parametrize("verb", ["tid", "cost", "recalibrate"])
def test_a_task_of_others_is_not_measured(capsys, rbn_run, tmp_path, verb):
    state = read_checkpoint(rbn_run / "checkpoint1.pt")
    state["cfg"]["task"]["_name"] = "translation"  # fairseq's
    write_checkpoint(tmp_path / "foreign.pt", state)
    output = ("--output", tmp_path / "out.pt") if verb == "recalibrate" else ()
    assert "the task is not this plugin's" in user_error(
        capsys, verb, tmp_path / "foreign.pt", *output
    )


def test_values_that_would_cost_a_file(capsys, rbn_run, tmp_path):
    output = tmp_path / "out.jsonl"
    output.touch()
    for path in (output, output / "below", tmp_path):
        line = user_error(capsys, "tid", rbn_run, "--json", path)
        assert "--json" in line and str(tmp_path) in line


def test_unknown_batching(capsys, rbn_run):
    arguments = ("--tid-batching", "random", "--tid-batching", "mixed:1")
    line = user_error(capsys, "tid", rbn_run, *arguments)
    assert "--tid-batching" in line and "`mixed:1`" in line and "`random`" in line
