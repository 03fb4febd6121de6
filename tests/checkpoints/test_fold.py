"""`rbn fold`: checkpoints that translate the same without running statistics."""

import shutil

import pytest
import torch

import runs
from command import rbn, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.fold import fold_checkpoint


@pytest.fixture(scope="module")
def pre_run(data_bin, tmp_path_factory):
    """A Pre-Norm model with batch norms on both sides, and a moving average."""
    directory = tmp_path_factory.mktemp("pre")
    runs.train(
        data_bin, directory, "--arch", "rbn_transformer_tiny_pre", "--norm-encoder", "batch",
        "--norm-encoder-final", "batch", "--norm-decoder", "batch@0:layer",
        "--norm-decoder-final", "batch", "--max-update", 40, "--no-epoch-checkpoints", "--no-tid",
        "--disable-validation", "--store-ema",
    )  # fmt: skip
    return directory / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def post_run(rbn_run):
    return rbn_run / "checkpoint3.pt"


@pytest.fixture(scope="module", params=["pre", "post"])
def pair(request, tmp_path_factory):
    """A checkpoint and the folded one."""
    path = request.getfixturevalue(f"{request.param}_run")
    output = tmp_path_factory.mktemp("folded") / "folded.pt"
    said = rbn("fold", path, "--output", output).stdout
    vanished, left = {"pre": (4 + 1 + 3, 1), "post": (0, 4)}[request.param]
    assert said.splitlines() == [
        f"folded {vanished} norms into linear layers, {left} are left as one multiply-add "
        "(what reads them cannot take them in)",
        f"wrote {output}",
    ]
    return path, output


def test_translates_the_same(pair, data_bin):
    expected, actual = (runs.generate(data_bin, path) for path in pair)
    assert actual == expected and len(actual) == 61
    assert len(set(actual.values())) > 20  # it has learnt to tell sentences apart


def test_what_the_file_says_and_leaves_out(pair):
    path, folded = map(read_checkpoint, pair)
    assert "last_optimizer_state" in path and "last_optimizer_state" not in folded
    assert "ema" not in folded["extra_state"]
    assert not any(".population." in name for name in folded["model"])
    assert all(value.dtype != torch.double for value in folded["model"].values())
    names = folded["rbn_fairseq"]["folded"]
    lost = {name.partition(".population.")[0] for name in path["model"] if ".population." in name}
    assert {*names["vanished"], *names["left"]} == lost
    changed = {
        name
        for name, value in path["cfg"]["model"].items()
        if folded["cfg"]["model"][name] != value
    }
    assert changed and all(name.startswith("norm_") for name in changed)
    assert path["cfg"]["task"] == folded["cfg"]["task"]


def test_a_note_of_an_average_stays(post_run, tmp_path):
    state = read_checkpoint(post_run) | {"rbn_fairseq": {"averaged": ["1", "2"]}}
    write_checkpoint(tmp_path / "average.pt", state)
    assert fold_checkpoint(tmp_path / "average.pt")["rbn_fairseq"]["averaged"] == ["1", "2"]


def test_embeddings_in_parts_are_refused(post_run, tmp_path):
    state = read_checkpoint(post_run)
    embedding = state["model"].pop("encoder.embed_tokens.weight")
    state["model"]["encoder.embed_tokens.embeddings.0.0.weight"] = embedding
    write_checkpoint(tmp_path / "adaptive.pt", state)
    with pytest.raises(ValueError, match="--adaptive-input cannot be folded"):
        fold_checkpoint(tmp_path / "adaptive.pt")


def test_half_precision_stays_half_and_multiply_adds_are_fp32(post_run, pre_run, tmp_path):
    for path in (post_run, pre_run):
        state = read_checkpoint(path)
        exact = fold_checkpoint(path)["model"]
        for name, value in state["model"].items():
            if value.is_floating_point() and ".population." not in name:
                state["model"][name] = value.half()
        write_checkpoint(tmp_path / "half.pt", state)
        for name, value in fold_checkpoint(tmp_path / "half.pt")["model"].items():
            fp32 = name.endswith((".scale", ".shift"))
            wanted = exact[name].dtype if fp32 else torch.half
            assert value.dtype == wanted or not value.is_floating_point(), name
            if name.endswith("weight"):  # a weight and its product are rounded
                torch.testing.assert_close(value.float(), exact[name], rtol=3e-3, atol=1e-4)


def test_what_half_precision_cannot_hold_is_refused(pre_run, tmp_path):
    state = read_checkpoint(pre_run)
    norm = "encoder.layers.0.self_attn_layer_norm"
    state["model"][f"{norm}.weight"][0] = 60000.0
    state["model"][f"{norm}.population.running_var"][0] = 0.0
    state["model"] = {
        name: value.half() if value.is_floating_point() and "population" not in name else value
        for name, value in state["model"].items()
    }
    write_checkpoint(tmp_path / "half.pt", state)
    with pytest.raises(ValueError, match="`encoder.layers.0.self_attn.*torch.float16.*as it is"):
        fold_checkpoint(tmp_path / "half.pt")


@pytest.fixture(scope="module")
def folded(post_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("folded") / "folded.pt"
    write_checkpoint(path, fold_checkpoint(post_run))
    return path


@pytest.mark.parametrize("verb", ["fold", "tid", "cost", "recalibrate", "average"])
def test_a_folded_checkpoint_is_refused(folded, verb, data_bin, tmp_path, capsys):
    output = ("--output", tmp_path / "out.pt")
    arguments = {
        "fold": (folded, *output),
        "recalibrate": (folded, "--data", data_bin, *output),
        "average": (folded, *output),
    }
    message = user_error(capsys, verb, *arguments.get(verb, (folded,)))
    assert f"`{folded}` is folded" in message
    assert not (tmp_path / "out.pt").exists()


PRE = ("--arch", "rbn_transformer_tiny_pre", "--max-update", 1)


@pytest.fixture(scope="module")
def vanished(data_bin, tmp_path_factory):
    """A folded checkpoint without any multiply-add: its plan could be trained."""
    directory = tmp_path_factory.mktemp("vanished")
    batch = ("--norm-encoder", "batch", "--norm-encoder-final", "batch")
    runs.train(data_bin, directory, *PRE, *batch, "--disable-validation", "--no-tid")
    state = fold_checkpoint(directory / "checkpoint_last.pt")
    assert not state["rbn_fairseq"]["folded"]["left"]
    write_checkpoint(directory / "folded.pt", state)
    return directory / "folded.pt"


@pytest.mark.parametrize(
    "option, plan",
    [
        ("--init-from", "none"),
        ("--restore-file", "none"),
        ("--restore-file", "batch"),
        ("--finetune-from-model", "none"),
        ("--continue-once", "none"),
        ("", "none"),
    ],
)
def test_training_does_not_go_on_from_it(vanished, option, plan, data_bin, tmp_path):
    start = (option, vanished)
    if not option:
        start, vanished = (), shutil.copy(vanished, tmp_path / "checkpoint_last.pt")
    plans = ("--norm-encoder", plan, "--norm-encoder-final", plan)
    with pytest.raises(ValueError, match=f"`{vanished}` is folded.* the checkpoint that was"):
        runs.train(data_bin, tmp_path, *PRE, *plans, *start)


def test_files_of_embeddings_are_not_read_again(post_run, tmp_path):
    state = read_checkpoint(post_run)
    for side in ("encoder", "decoder"):
        state["cfg"]["model"][f"{side}_embed_path"] = str(tmp_path / "gone.vec")
    write_checkpoint(tmp_path / "checkpoint.pt", state)
    folded, expected = map(fold_checkpoint, (tmp_path / "checkpoint.pt", post_run))
    for name, value in expected["model"].items():
        assert torch.equal(folded["model"][name], value)


def test_nothing_to_fold(data_bin, plain_run, post_run, tmp_path, capsys):
    message = user_error(
        capsys, "fold", plain_run / "checkpoint_last.pt", "--output", tmp_path / "o"
    )
    assert "made without this plugin" in message
    state = read_checkpoint(post_run)
    state["cfg"]["model"]["norm_encoder"] = "layer"
    state["model"] = {n: value for n, value in state["model"].items() if ".population." not in n}
    write_checkpoint(tmp_path / "layer.pt", state)
    message = user_error(capsys, "fold", tmp_path / "layer.pt", "--output", tmp_path / "o")
    assert "--norm-encoder layer" in message and "nothing to fold" in message
