"""Trainings with bins of sentence lengths: the same weights, and bins that fit the data."""

import re
import shutil

import numpy as np
import pytest
import torch

import runs
from rbn_fairseq.callbacks.running_statistics import _Attempt
from rbn_fairseq.checkpoints.average import moving_average
from rbn_fairseq.measuring.bins import cut_bins
from rbn_fairseq.norms import BatchNorm, BatchNormOptions, LengthBins
from saved import assert_same_weights, last, load

SMALL = (
    "--norm-encoder", "batch", "--max-tokens", 200, "--decoder-layers", 1, "--encoder-embed-dim",
    16, "--encoder-ffn-embed-dim", 16, "--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16,
    "--conditioning-interval", 0,
)  # fmt: skip
BINS = ("--norm-batch-length-bins", 4)
TRAINED = (*SMALL, "--max-epoch", 2, "--update-freq", 2, "--store-ema", "--ema-decay", 0.9,
           "--tid-batches", 3)  # fmt: skip
QUICK = (*SMALL, "--no-tid", "--disable-validation", "--max-update", 1)
WHERE = ("edges", "centres")


def statistics(model, kind):
    """The entries of this kind, of the four norms of two layers."""
    found = [value for name, value in model.items() if name.endswith(f".population.{kind}")]
    assert len(found) == 4
    return found


def lengths(data, split):
    """Source lengths in tokens, the end of the sentence included."""
    text = (data / "text" / f"{split}.de").read_text()
    return np.array([len(line.split()) + 1 for line in text.splitlines()])


def weights(model):
    return {name: value for name, value in model.items() if ".population." not in name}


@pytest.fixture(scope="module")
def trained(varied, tmp_path_factory):
    """Save directory and log of two epochs with bins."""
    directory = tmp_path_factory.mktemp("bins")
    return directory, runs.train(varied, directory, *TRAINED, *BINS)


@pytest.fixture(scope="module")
def without(varied, tmp_path_factory):
    """The same without bins."""
    directory = tmp_path_factory.mktemp("ordinary")
    return directory, runs.train(varied, directory, *TRAINED)


def test_weights_are_those_without_bins(trained, without):
    (one, log), (other, plain) = trained, without
    one, other = last(one), last(other)
    assert_same_weights(weights(one["model"]), weights(other["model"]))
    for kind in ("running_mean", "running_var"):
        for ours, theirs in zip(
            statistics(one["model"], kind), statistics(other["model"], kind), strict=True
        ):
            assert torch.equal(ours, theirs)
    first, second = (state["last_optimizer_state"]["state"][0] for state in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in ("exp_avg", "exp_avg_sq"))
    # The validations' are not: they normalise by length.
    losses = [re.findall(r"valid on .* \| loss (\S+)", text) for text in (log, plain)]
    assert len(losses[0]) == 2 and losses[0] != losses[1]


def test_a_model_without_bins_takes_the_statistics_of_all_lengths(trained, without, varied, caplog):
    with caplog.at_level("INFO", "rbn_fairseq.models.state_dicts"):
        model, _, _ = load(trained[0] / "checkpoint_last.pt", varied, norm_batch_length_bins=1)
    assert_same_weights(model.state_dict(), last(without[0])["model"])
    assert "it takes the checkpoint's statistics of all lengths" in caplog.text


def test_bins_are_of_the_training_sentences(trained, varied):
    directory, log = trained
    model, found = last(directory)["model"], lengths(varied, "train")
    (edges, *_), (centres, *_) = (statistics(model, kind) for kind in WHERE)
    assert edges.tolist() == [3, 7.5, 12.5, 17.5, 22]  # 8 sentences of each of 20 lengths
    for number, centre in enumerate(centres.tolist()):
        inside = found[(found > edges[number].item()) & (found < edges[number + 1].item())]
        inside = {0: found[found < 7.5], 3: found[found > 17.5]}.get(number, inside)
        assert centre == pytest.approx((inside**2).sum() / inside.sum())
    for kind in WHERE:
        assert all(
            torch.equal(value, statistics(model, kind)[0]) for value in statistics(model, kind)
        )
    assert log.count("length bins: source lengths") == 1
    said = "length bins: source lengths 3 to 22 in 4 bins, edges 3 7.5 12.5 17.5 22, cut by the"
    assert said in log
    assert "| running statistics by sentence length (4 bins)" in log
    assert all(weight.gt(0).all() for weight in statistics(model, "bin_weight"))


def test_resume(varied, trained, tmp_path):
    runs.train(varied, tmp_path, *TRAINED, *BINS, "--max-update", 10)  # amid the second epoch
    log = runs.train(varied, tmp_path, *TRAINED, *BINS)
    assert "edges 3 7.5 12.5 17.5 22, as the model has them" in log
    whole, resumed = last(trained[0]), last(tmp_path)
    assert_same_weights(resumed["model"], whole["model"])
    assert_same_weights(resumed["extra_state"]["ema"], whole["extra_state"]["ema"])
    assert runs.tid_rows(tmp_path) == runs.tid_rows(trained[0])


def test_other_data_leave_the_bins_as_they_are(varied, trained, tmp_path):
    shutil.copy(trained[0] / "checkpoint_last.pt", tmp_path)
    runs.train(
        varied, tmp_path, *TRAINED, *BINS, "--train-subset", "test", "--reset-dataloader",
        "--max-update", 16, "--disable-validation", "--no-tid", "--max-source-positions", 25,
    )  # fmt: skip
    before, after = last(trained[0])["model"], last(tmp_path)["model"]
    for kind in WHERE:
        assert torch.equal(statistics(after, kind)[0], statistics(before, kind)[0])
    assert not torch.equal(statistics(after, "bin_mean")[0], statistics(before, "bin_mean")[0])


def test_the_moving_average_has_the_same_bins(trained, tmp_path):
    path = trained[0] / "checkpoint_last.pt"
    model, kept = last(trained[0])["model"], last(trained[0])["extra_state"]["ema"]
    average = moving_average(path)["model"]
    assert average.keys() == kept.keys()
    for kind in WHERE:
        assert torch.equal(statistics(average, kind)[0], statistics(model, kind)[0])
        # fairseq's own copy is rounded in every update.
        torch.testing.assert_close(
            statistics(kept, kind)[0], statistics(model, kind)[0], rtol=1e-5, atol=0
        )
    rest = [name for name in kept if not name.endswith(WHERE)]
    assert all(torch.equal(average[name], kept[name]) for name in rest)


@pytest.fixture
def norm():
    """Three channels and two bins, up to 5 tokens and longer."""
    norm = BatchNorm(3, BatchNormOptions(length_bins=2))
    norm.population.set_bins(LengthBins(np.array([1, 5.5, 9]), np.array([3.0, 7.0])))
    return norm


def test_processes_have_no_mean_of_where_bins_are(norm, monkeypatch):
    agreed = []
    monkeypatch.setattr(
        "rbn_fairseq.callbacks.running_statistics.mean_over_processes", agreed.extend
    )
    _Attempt(torch.nn.ModuleList([norm])).agree()
    kinds = ("running_mean", "running_var", "bin_weight", "bin_mean", "bin_var")
    moving = [getattr(norm.population, kind) for kind in kinds]
    assert {id(buffer) for buffer in agreed} == {id(buffer) for buffer in moving}


def test_an_update_that_is_dropped_leaves_no_trace_in_bins(norm):
    norm(torch.randn(4, 2, 3))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    attempt = _Attempt(torch.nn.ModuleList([norm]))
    norm(torch.randn(8, 2, 3))
    assert not torch.equal(norm.population.bin_weight, before["population.bin_weight"])
    attempt.undo()
    assert_same_weights(norm.state_dict(), before)


@pytest.fixture(scope="module")
def still():
    """One update that leaves the weights as they are: what is saved is what it began with."""
    return (*QUICK, "--lr", runs.NOTHING, "--norm-batch-momentum", 1e-30)


def started(varied, directory, still, start, *bins):
    log = runs.train(varied, directory, *still, "--init-from", start / "checkpoint_last.pt", *bins)
    return last(directory)["model"], log


@pytest.mark.parametrize("source", ["without", "trained"])
def test_init_from_estimates_bins_that_the_file_lacks(varied, still, source, tmp_path, request):
    start = request.getfixturevalue(source)[0]
    model, log = started(varied, tmp_path, still, start, "--norm-batch-length-bins", 3)
    assert_same_weights(weights(model), weights(last(start)["model"]))
    assert "statistics of 4 norms estimated" in log and "cut by the training data" in log
    assert all(len(edges) == 4 for edges in statistics(model, "edges"))
    # Of the training batches: a bin's weight is its part of the tokens.
    found, edges = lengths(varied, "train"), statistics(model, "edges")[0].numpy()
    inside = np.digitize(found, edges[1:-1])
    shares = [found[inside == number].sum() / found.sum() for number in range(3)]
    np.testing.assert_allclose(statistics(model, "bin_weight")[0], shares, rtol=1e-5)


def test_init_from_takes_the_files_bins(varied, still, trained, tmp_path):
    model, log = started(varied, tmp_path, still, trained[0], *BINS, "--train-subset", "test")
    assert_same_weights(model, last(trained[0])["model"])
    assert "statistics of 0 norms estimated" in log and "as the model has them" in log


def test_ordinary_statistics_start_from_those_of_bins(varied, still, trained, tmp_path):
    model, _ = started(varied, tmp_path, still, trained[0])
    theirs = last(trained[0])["model"]
    assert len(model) < len(theirs) and all(
        torch.equal(model[name], theirs[name]) for name in model
    )


def test_another_number_of_bins_does_not_resume(varied, trained, tmp_path):
    shutil.copy(trained[0] / "checkpoint_last.pt", tmp_path)
    with pytest.raises(Exception, match="Cannot load model") as error:  # which fairseq puts on top
        runs.train(varied, tmp_path, *QUICK, "--norm-batch-length-bins", 5)
    assert "--norm-batch-length-bins" in str(error.value.__context__)


def test_a_training_does_not_lose_its_bins(varied, trained, tmp_path):
    shutil.copy(trained[0] / "checkpoint_last.pt", tmp_path)
    with pytest.raises(ValueError, match="--norm-batch-length-bins 4, which .* lost. .*--init-fr"):
        runs.train(varied, tmp_path, *QUICK)


@pytest.mark.parametrize(
    "given, words",
    [
        (("--norm-batch-length-bins", 21), "--norm-batch-length-bins: .* 20 different lengths"),
        (("--norm-batch-length-bins", 0), r"--norm-batch-length-bins must be >= 1.* but is 0"),
        (
            (*BINS, "--norm-decoder", "layer@0:batch", "--decoder-layers", 2),
            "--norm-decoder: `batch` .* length is not known yet. Use .*--norm-batch-length-bins",
        ),
        (
            (*BINS, "--decoder-normalize-before", "--norm-decoder-final", "batch"),
            "--norm-decoder-final: `batch` .* length is not known yet.*--norm-batch-length-bins",
        ),
    ],
)
def test_refused(varied, tmp_path, given, words):
    with pytest.raises(ValueError, match=words):
        runs.train(varied, tmp_path, *QUICK, *given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("longest", "told"), [(1, ["5.5 to 9"]), (200, [])])
def test_a_bin_of_few_tokens_is_told(caplog, longest, told):
    lengths = np.array([2] * 600 + [9] * longest)
    with caplog.at_level("WARNING", logger="rbn_fairseq.measuring.bins"):
        cut_bins(lengths, 2, "row")
    assert ("row: only 9 training tokens" in caplog.text) == bool(told)
    assert [text for text in ("2 to 5.5", "5.5 to 9") if text in caplog.text] == told
