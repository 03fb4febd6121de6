"""`rbn bench`."""

import json

import pytest
import torch

from command import rbn, user_error
from rbn_fairseq.bench.named_settings import DEFAULTS
from runs import TINY

FIELDS = {
    "bench", "norm", "device", "threads", "dtype", "case", "ms", "ratio_to_layer", "floor_ratio",
    "n", "spread", "machine", "versions",
}  # fmt: skip
CRITERION = "label_smoothed_cross_entropy_rbn"
SMALL = ("--", *TINY, "--optimizer", "adam", "--max-tokens", 600)


def test_norm_writes_rows_alone_to_stdout():
    result = rbn(
        "bench", "norm", "--tokens", 64, "--channels", "8,16", "--dtype", "float32,bfloat16",
        "--norms", "rms,groupscale+power", "--depth", 2, "--rounds", 1, "--json", "-",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    norms = ["layer", "rms", "groupscale+power", "floor"]
    assert [row["norm"] for row in rows] == norms * 4
    assert [(row["dtype"], row["case"]) for row in rows[::4]] == [
        (dtype, f"64x{channels}") for dtype in ("float32", "bfloat16") for channels in (8, 16)
    ]
    assert all(FIELDS <= set(row) and row["device"] == "cpu" for row in rows)
    assert all(row["ratio_to_layer"] == 1 for row in rows if row["norm"] == "layer")
    assert torch.__version__ in rows[0]["versions"] and rows[0]["machine"]
    assert "groupscale+power" in result.stderr and "x floor" in result.stderr


def test_profile_shows_each_norms_operators(data_bin):
    result = rbn(
        "bench", "profile", data_bin, "--setting", "layer:", "--setting",
        "bn: --norm-encoder batch", "--updates", 1, "--top", 1000, "--json", "-", *SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    times = {(row["norm"], row["case"]): row["ms"] for row in rows}
    assert times["bn", "aten::batch_norm_update_stats"] > 0
    assert times["layer", "aten::batch_norm_update_stats"] == 0
    assert times["layer", "aten::native_layer_norm"] > 0  # in its decoder, so has the other
    for name in ("layer", "bn"):
        parts = [
            ms
            for (norm, case), ms in times.items()
            if (norm, case != "all operators") == (name, True)
        ]
        assert times[name, "all operators"] == pytest.approx(sum(parts))


def test_norm_replays_batches_of_data(data_bin, tmp_path):
    path = tmp_path / "rows.json"
    result = rbn(
        "bench", "norm", data_bin, "--name", "numbers", "--max-tokens", 300, "--batches", 2,
        "--channels", 8, "--depth", 1, "--rounds", 1, "--evaluation", "--json", path,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(path.read_text())
    assert {row["case"] for row in rows} == {"numbers-source", "numbers-target"}
    assert {row["bench"] for row in rows} == {"norm, evaluation"}
    assert "numbers-target" in result.stdout


def test_scaling(tmp_path):
    figure = tmp_path / "growth.svg"
    result = rbn(
        "bench", "scaling", "--sweep", "layers", "--values", "1,2", "--tokens", 64, "--channels", 8,
        "--rounds", 1, "--figure", figure, "--json", "-",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    cases = [row["case"] for row in json.loads(result.stdout)]
    assert cases == ["layers-1/64x8"] * 3 + ["layers-2/64x8"] * 3
    assert "layers of an encoder" in figure.read_text()


@pytest.mark.parametrize(
    "settings, said",
    [
        (["--norm-encoder batch"], "--setting must be `NAME: OPTIONS`"),
        ([": --norm-encoder batch"], "--setting must be `NAME: OPTIONS`"),
        (["ln:", "ln: --norm-encoder rms"], "two settings have the same name"),
        (["ln:", "x: --norm-encoder nonsense"], "`x`: --norm-encoder: unknown norm `nonsense`"),
        (["ln: --arch 'open"], "--setting must be `NAME: OPTIONS`"),
        (["ln:", "x: --normm-encoder rms"], "`x`: unrecognized arguments: --normm-encoder rms"),
        (["lm"], "--setting must be `NAME: OPTIONS`"),
        (["layer", "layer: --dropout 0.3"], "two settings have the same name"),
        (["ln:", "x: --max-tokens 99"], "`x`: --max-tokens is 99, but 600 in `ln`"),
        (["ln:", "x: --seed 9"], "`x`: --seed is 9"),
        (["fairseq", "x: --task translation --no-tid"], "`x`: unrecognized"),
        (["ln: --length-mixing randm"], "--length-mixing must be"),
        (["ln: --update-freq 2"], "--update-freq must be 1"),
    ],
)
def test_refused_settings(capsys, data_bin, settings, said):
    given = [part for each in settings for part in ("--setting", each)]
    assert said in user_error(capsys, "bench", "train", data_bin, *given, *SMALL)


def test_a_target_is_not_timed(capsys, data_bin):
    setting = f"x: --criterion {CRITERION} --norm-encoder batch --rbn-target-tid 1,1"
    said = user_error(capsys, "bench", "train", data_bin, "--setting", setting, *SMALL)
    assert "`x`: --rbn-target-tid penalises nothing" in said


@pytest.mark.parametrize("verb", ["train", "profile"])
def test_fairseqs_own_training_and_mixed_batches_are_measured(data_bin, verb):
    result = rbn(
        "bench", verb, data_bin, "--setting", "fairseq", "--setting", "layer", "--mixing", 4,
        "--updates", 1, "--json", "-", *(("--rounds", 1) if verb == "train" else ()), *SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = [row for row in json.loads(result.stdout) if row["bench"] == verb]
    names = list(dict.fromkeys(row["norm"] for row in rows))
    assert names == ["fairseq", "layer", "layer, mixing 4"] + ["floor"] * (verb == "train")
    assert all(row["tokens"] > 0 for row in rows)


def test_fairseqs_own_training_does_not_take_the_options_of_norms(capsys, data_bin):
    said = user_error(capsys, "bench", "train", data_bin, *SMALL, "--norm-encoder", "batch")
    assert "`fairseq`: " in said and "--norm-encoder batch" in said and "--setting layer" in said


def test_mixing_that_fairseq_train_refuses(capsys, data_bin):
    given = ("--setting", "layer", "--mixing", "0", *SMALL)
    said = user_error(capsys, "bench", "train", data_bin, *given)
    assert "`layer, mixing 0`: --length-mixing" in said


@pytest.mark.parametrize("verb", ["profile", "generate"])
def test_settings_share_their_batches(capsys, data_bin, verb):
    given = ("--setting", "ln:", "--setting", "x: --max-tokens 99")
    said = user_error(capsys, "bench", verb, data_bin, *given, *SMALL)
    assert "`x`: --max-tokens is 99" in said


@pytest.mark.parametrize(
    "options, said",
    [
        (("--norms", "bacth"), "--norms: unknown norm `bacth`. Did you mean `batch`?"),
        (("--dtype", "float64"), "--dtype: unknown `float64`. Known: float32, bfloat16, float16"),
        (("--channels", "8,x"), "--channels must be whole numbers from 1 on, joined by commas"),
        (("--threads", "0"), "--threads must be whole numbers from 1 on"),
        (("--tokens", "100"), "--tokens must be multiples of 32"),
        (("--device", "tpu"), "--device must be `cpu` or `cuda`, but is `tpu`"),
        (("--json", "nowhere/rows.json"), "--json: the directory `nowhere` does not exist"),
    ],
)
def test_refused_options_of_norm(capsys, options, said):
    assert said in user_error(capsys, "bench", "norm", *options)


def test_data_have_their_own_tokens(capsys, data_bin):
    said = user_error(capsys, "bench", "norm", data_bin, "--tokens", "32")
    assert "--tokens: DATA-BIN has its own" in said


def test_threads_of_a_gpu_are_not_counted_up(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    said = user_error(capsys, "bench", "norm", "--device", "cuda", "--threads", "1,2")
    assert "--threads are the CPU's, but --device is cuda: `1,2` must be one" in said


@pytest.mark.parametrize(
    "options, said",
    [
        (("--sweep", "time"), "--sweep: unknown `time`. Known: tokens, channels, layers, proc"),
        (("--values", "64,x"), "--values must be whole numbers from 1 on"),
        (("--dtype", "float32,bfloat16"), "--dtype: unknown `float32,bfloat16`"),
        (("--figure", "growth.txt"), "--figure must end with .png, .svg or .pdf"),
        (("--figure", "nowhere/growth.png"), "--figure: the directory `nowhere` does not exist"),
        (("--sweep", "processes", "--device", "cuda"), "--sweep processes is measured on the CPU"),
    ],
)
def test_refused_options_of_scaling(capsys, options, said):
    assert said in user_error(capsys, "bench", "scaling", *options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(capsys):
    said = user_error(capsys, "bench", "norm", "--device", "cuda")
    assert "--device cuda: torch finds no such GPU here" in said


@pytest.mark.parametrize("verb", ["train", "tid", "generate"])
def test_output_is_tried_before_the_work(capsys, data_bin, tmp_path, verb):
    path = tmp_path / "nowhere" / "out.json"
    said = user_error(capsys, "bench", verb, data_bin, "--json", path)
    assert f"--json: the directory `{path.parent}` does not exist" in said


def test_help_tells_the_defaults():
    said = " ".join(rbn("bench", "train", "--help").stdout.replace("`", " ").split())
    assert DEFAULTS in said


def test_other_options_for_all_take_the_place_of_the_defaults(capsys, data_bin):
    options = ("--setting", "ln:", "--", "--arch", "rbn_transformer_tiny")
    said = user_error(capsys, "bench", "train", data_bin, *options)
    assert "`ln`: optimizer is required" in said
