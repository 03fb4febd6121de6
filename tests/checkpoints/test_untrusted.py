"""A checkpoint from anybody: none of the ways in which it is read runs code that it holds."""

import argparse
import collections
import io
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch

import runs
from command import rbn
from rbn_fairseq.checkpoints.files import read_checkpoint


class Call:
    """What a pickle makes of it: ``function(*arguments)``, and its state if there is one."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments, *([] if state is None else [state]))

    def __reduce__(self):
        return self.parts


def in_an_archive(path, state, target):
    state["extra_state"]["gift"] = Call(os.mkdir, str(target))
    torch.save(state, path)


def in_an_old_file(path, state, target):
    state["extra_state"]["gift"] = Call(os.mkdir, str(target))
    torch.save(state, path, _use_new_zipfile_serialization=False)


def in_a_tar(path, state, target):
    with tarfile.open(path, "w") as tar:  # as torch wrote before 0.1.10
        for name in ("sys_info", "pickle", "storages", "tensors"):
            content = pickle.dumps(Call(os.mkdir, str(target)), 2)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def in_a_setting(path, state, target):
    # fairseq evaluates it where it builds the model.
    model = state["cfg"]["model"]
    model["adaptive_softmax_cutoff"] = f"__import__('os').mkdir({str(target)!r})"
    model["share_all_embeddings"] = model["share_decoder_input_output_embed"] = False
    torch.save(state, path)


def in_a_setting_of_another_model(path, state, target):
    layers = f"[__import__('os').mkdir({str(target)!r})]"
    sides = {f"{side}_embed_path": None for side in ("encoder", "decoder")}
    model = {"_name": "fconv", **sides, "encoder_layers": layers, "encoder_embed_dim": 8}
    state["cfg"]["model"] = {**model, "dropout": 0.1, "max_source_positions": 99}
    torch.save(state, path)


PICKLES = [in_an_archive, in_an_old_file, in_a_tar]


@pytest.fixture
def gift(tmp_path, rbn_run, request):
    """Where the checkpoint would make a directory."""
    state = read_checkpoint(rbn_run / "checkpoint1.pt")
    request.getfixturevalue("give")(tmp_path / "gift.pt", state, tmp_path / "touched")
    return tmp_path / "touched"


@pytest.mark.parametrize("give", [in_an_archive])
def test_the_attack_works_where_torch_does_not_check(gift, give, tmp_path):
    with pytest.raises(ValueError, match="gift.pt.*mkdir.*none of it was run"):
        read_checkpoint(tmp_path / "gift.pt")
    torch.load(tmp_path / "gift.pt", weights_only=False)
    assert gift.exists()


@pytest.mark.parametrize("give", [*PICKLES, in_a_setting])
@pytest.mark.parametrize("verb", ["doctor", "tid", "cost", "recalibrate", "average", "fold"])
def test_no_verb_runs_anything(gift, give, verb, tmp_path, data_bin):
    file, output = tmp_path / "gift.pt", ("--output", tmp_path / "out.pt")
    arguments = {
        "doctor": ("--checkpoint", file),
        "recalibrate": (file, "--data", data_bin, *output),
        "fold": (file, *output),
        "average": (file, "--recalibrate", "--data", data_bin, *output),
    }
    result = rbn(verb, *arguments.get(verb, (file,)))
    assert isinstance(result.exception, (ValueError, SystemExit, type(None)))
    assert "Usage" not in result.output
    assert not gift.exists()


@pytest.mark.parametrize("give", [*PICKLES, in_a_setting, in_a_setting_of_another_model])
def test_generation_runs_nothing(gift, give, tmp_path, data_bin):
    with pytest.raises(Exception, match="(?i)weights_only|safe|nothing of it was run"):
        runs.generate(data_bin, tmp_path / "gift.pt")
    if give in PICKLES:  # the verb reads the file by itself before fairseq does
        rbn("generate", data_bin, "--path", tmp_path / "gift.pt")
    assert not gift.exists()


@pytest.mark.parametrize("give", PICKLES)
@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model", ""])
def test_training_runs_nothing(gift, give, option, tmp_path, data_bin):
    way = (option, tmp_path / "gift.pt") if option else ()
    if not option:
        (tmp_path / "gift.pt").rename(tmp_path / "checkpoint_last.pt")
    with pytest.raises(Exception, match="(?i)weights_only|safe|damaged|legacy"):
        runs.train(data_bin, tmp_path, *way, "--norm-encoder", "batch", "--max-update", 1)
    assert not gift.exists()


ADDRESS = b"\x41" * 8  # an array of objects takes it for the address of one


@pytest.mark.parametrize(
    "call",
    [
        Call(collections.defaultdict, os.getcwd),
        Call(argparse._os.getcwd),
        Call(np.ndarray, (1,), np.dtype("O"), ADDRESS),
        Call(np.ndarray, (1,), np.dtype([("a", "O")]), ADDRESS),
        Call(np.ndarray, (1,), "O", ADDRESS),
        Call(np.ndarray, (1,), np.dtype("f8"), ADDRESS),
        Call(np.array(0.0).__reduce__()[0], np.ndarray, (1,), "O"),
        Call(
            np.array(0.0).__reduce__()[0], np.ndarray, (0,), b"b",
            state=(1, (1,), Call(np.dtype, "O8", False, True), False, ADDRESS),
        ),
        Call(
            np.array(0.0).__reduce__()[0], np.ndarray, (0,), b"b",
            state=(1, (1,), argparse.Namespace(dtype="O"), False, ADDRESS),
        ),
        Call(np.float64(0).__reduce__()[0], np.dtype("O"), ADDRESS),
    ],
    ids=range(10),
)  # fmt: skip
def test_allowed_types_cannot_be_abused(tmp_path, call):
    torch.save({"model": {}, "gift": call}, tmp_path / "gift.pt")
    try:
        gift = torch.load(tmp_path / "gift.pt", weights_only=True)["gift"]
    except (pickle.UnpicklingError, TypeError, AttributeError):
        return
    assert isinstance(gift, np.ndarray) and gift.dtype == np.float64 and not gift.size


def test_a_script_is_not_run(tmp_path):
    torch.jit.script(torch.nn.Linear(1, 1)).save(tmp_path / "script.pt")
    with pytest.raises(ValueError, match="script.pt"):
        read_checkpoint(tmp_path / "script.pt")


def test_names_that_lead_elsewhere(tmp_path):
    # A name behind an allowed module; torch writes none such.
    torch.save({"model": {}}, tmp_path / "checkpoint.pt")
    path = tmp_path / "gift.pt"
    with zipfile.ZipFile(tmp_path / "checkpoint.pt") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            gift = b"\x80\x02cargparse\n_os.getcwd\n)R."
            new.writestr(name, gift if name.endswith("data.pkl") else old.read(name))
    with pytest.raises(ValueError, match="none of it was run"):
        read_checkpoint(path)


@pytest.mark.parametrize("kind", ["f8", "f4", "i8", ">f8"])
def test_numbers_come_back(tmp_path, kind):
    # What --eval-bleu logs; odd shapes: no axis, one element, by columns.
    whole = np.arange(6).reshape(2, 3).astype(kind)
    state = {"scalar": whole[1, 2], "one": whole[:1, :1], "0-d": np.array(2, kind), "f": whole.T}
    torch.save(state, tmp_path / "one.pt")
    torch.save(torch.load(tmp_path / "one.pt", weights_only=True), tmp_path / "two.pt")
    read = torch.load(tmp_path / "two.pt", weights_only=True)
    for name, value in state.items():
        np.testing.assert_array_equal(read[name], value)
        assert (read[name].shape, read[name].dtype.name) == (value.shape, value.dtype.name)
    # Whoever reads what we wrote does not need this package.
    with zipfile.ZipFile(tmp_path / "two.pt") as archive:
        assert all(b"rbn_fairseq" not in archive.read(name) for name in archive.namelist())
