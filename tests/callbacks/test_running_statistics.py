"""Running statistics move with the updates that are made: observed batches, folded by hand."""

import contextlib
import itertools
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from fairseq.optim import FairseqOptimizer
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import train as fairseq_train

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint
from saved import load
from watching import amp_on_cpu, overflowing, watching

BATCH = (  # small, because the CPU is slow in half precision
    "--norm-encoder", "batch", "--no-tid", "--conditioning-interval", 0, "--disable-validation",
    "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16, "--decoder-embed-dim", 16,
    "--decoder-ffn-embed-dim", 16, "--decoder-layers", 1, "--max-tokens", 200,
)  # fmt: skip


def assert_saved(path, seen, rtol=1e-5, atol=1e-6):
    """The checkpoint's running statistics are those of the observed updates."""
    model, expected = read_checkpoint(path)["model"], seen.statistics()
    assert len(expected) == 4  # two layers, two norms
    for name, (mean, var) in expected.items():
        for saved, value in (
            (f"{name}.population.running_mean", mean),
            (f"{name}.population.running_var", var),
        ):
            torch.testing.assert_close(model[saved].double(), value, rtol=rtol, atol=atol)


def test_plain(data_bin, tmp_path):
    with watching() as seen:
        runs.train(data_bin, tmp_path, *BATCH, "--max-update", 4, "--update-freq", 2)
    assert seen.made == [True] * 4 and {len(a) for a in seen.attempts} == {2}
    assert_saved(tmp_path / "checkpoint_last.pt", seen)


@contextmanager
def fp16_on_cpu():
    """fairseq takes the GPU for granted in two places of fp16 training; the CPU serves."""
    with (
        mock.patch.object(torch.Tensor, "cuda", lambda self: self),
        mock.patch.object(torch.cuda, "current_device", lambda: None),
    ):
        yield


@contextmanager
def without_tpu():
    """fairseq's command line takes --bf16 for --tpu; its Hydra road does not, and a GPU serves."""
    convert = fairseq_train.convert_namespace_to_omegaconf

    def converted(args):
        cfg = convert(args)
        cfg.common.tpu = False
        return cfg

    with mock.patch.object(fairseq_train, "convert_namespace_to_omegaconf", converted):
        yield


FP16 = [
    ("--fp16",),
    ("--fp16", "--fp16-no-flatten-grads"),
    ("--memory-efficient-fp16",),
]


@pytest.mark.parametrize("options", FP16, ids=" ".join)
def test_overflow_of_the_loss_scale(data_bin, tmp_path, options):
    with watching() as seen, fp16_on_cpu():
        runs.train(
            data_bin, tmp_path, *BATCH, *options, "--fp16-init-scale", 2**20, "--max-update", 3,
            "--update-freq", 2,
        )  # fmt: skip
    assert not all(seen.made) and sum(seen.made) == 3
    assert_saved(tmp_path / "checkpoint_last.pt", seen)


@pytest.mark.parametrize("retries", [1, 2])
def test_retries_of_amp(data_bin, tmp_path, retries):
    with watching() as seen, amp_on_cpu(), overflowing({2, 3, 6, 7, 8}):
        runs.train(
            data_bin, tmp_path, *BATCH, "--amp", "--max-update", 5, "--update-freq", 2,
            "--amp-batch-retries", retries,
        )  # fmt: skip
    assert not all(seen.made) and sum(seen.made) == 5
    assert_saved(tmp_path / "checkpoint_last.pt", seen)


def test_nan_detector(data_bin, tmp_path):
    with watching() as seen, overflowing({3}), pytest.raises(FloatingPointError, match="Nan/Inf"):
        runs.train(data_bin, tmp_path, *BATCH, "--max-update", 5, "--update-freq", 2)
    assert seen.made == [True, True, False, False] and len(seen.attempts[-1]) == 2
    assert_saved(tmp_path / "crash.pt", seen)


def test_fairseq_names_the_module_that_makes_nan(data_bin, tmp_path, caplog):
    step = TranslationTask.train_step

    def train_step(self, sample, model, criterion, optimizer, update_num, **kwargs):
        def nan(module, inputs, output):
            return output * torch.nan if update_num == 2 else None

        with model.encoder.layers[0].fc2.register_forward_hook(nan, prepend=True):
            return step(self, sample, model, criterion, optimizer, update_num, **kwargs)

    with (
        mock.patch.object(TranslationTask, "train_step", train_step),
        pytest.raises(FloatingPointError, match="Nan/Inf"),
    ):
        runs.train(data_bin, tmp_path, "--norm-encoder", "batch", "--max-update", 5, "--no-tid")
    # fairseq's search, forward and backward, to its end.
    found = [m for m in caplog.messages if m.startswith("NaN detected in output of ")]
    assert "output of encoder.layers.0.fc2," in found[0] and "forward" in found[0]
    assert "backward" in found[-1]
    assert any(m.startswith("Detected nan/inf grad norm") for m in caplog.messages)


def test_no_memory(data_bin, tmp_path):
    calls, backward = itertools.count(1), FairseqOptimizer.backward

    def fails(self, loss):
        if next(calls) in (4, 5):  # second micro-batch of an update, first of the next
            raise RuntimeError("out of memory")
        backward(self, loss)

    with watching() as seen, mock.patch.object(FairseqOptimizer, "backward", fails):
        runs.train(data_bin, tmp_path, *BATCH, "--max-update", 3, "--update-freq", 2)
    assert seen.made.count(True) == 3 and not all(seen.made)
    assert_saved(tmp_path / "checkpoint_last.pt", seen)


@pytest.fixture
def step(rbn_run, data_bin):
    """Function that does the task's step of a trained model; returns which statistics moved."""
    model, cfg, task = load(rbn_run / "checkpoint_last.pt", data_bin)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    sample = dataset.collater([dataset[index] for index in range(8)])
    criterion = task.build_criterion(cfg.criterion)

    def moved(backward=torch.Tensor.backward, **options):
        before = {n: b.clone() for n, b in model.named_buffers() if "running" in n}
        with contextlib.suppress(RuntimeError):
            optimizer = SimpleNamespace(backward=backward)
            task.train_step(sample, model, criterion, optimizer, 0, **options)
        after = dict(model.named_buffers())
        return [not torch.equal(before[name], after[name]) for name in before]

    return moved


def test_dummy_batch_leaves_statistics_alone(step):
    assert not any(step(ignore_grad=True))
    assert all(step(ignore_grad=False))


@pytest.fixture(scope="module")
def fp32(data_bin, tmp_path_factory):
    """Model after training in fp32."""
    directory = tmp_path_factory.mktemp("fp32")
    runs.train(data_bin, directory, *BATCH, "--max-update", 4)
    return read_checkpoint(directory / "checkpoint_last.pt")["model"]


@pytest.mark.parametrize(
    "options",
    [*FP16, ("--bf16", "--fp16-no-flatten-grads"), ("--memory-efficient-bf16",), ("--amp",)],
    ids=" ".join,
)
def test_half_precision_is_near_fp32(data_bin, tmp_path, fp32, options):
    with fp16_on_cpu(), amp_on_cpu(), without_tpu():
        runs.train(data_bin, tmp_path, *BATCH, *options, "--max-update", 4)
    half = read_checkpoint(tmp_path / "checkpoint_last.pt")["model"]
    statistics = [name for name in fp32 if "running" in name]
    assert len(statistics) == 8
    for name in statistics:
        assert (half[name] - fp32[name]).norm() < 0.01 * fp32[name].norm()
    weights = [name for name in fp32 if name not in statistics and fp32[name].any()]
    one, other = (torch.cat([model[name].flatten() for name in weights]) for model in (fp32, half))
    assert 0 < (one - other).norm() < 0.01 * one.norm()
