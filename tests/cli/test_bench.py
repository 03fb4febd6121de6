"""`rbn bench`: each verb once on small data, and what it refuses."""

import json

import pytest

from command import rbn, user_error
from rbn_fairseq.bench.generating import PLACEMENTS
from runs import TINY

CRITERION = "label_smoothed_cross_entropy_rbn"
SMALL = ("--", *TINY, "--optimizer", "adam", "--max-tokens", 600)


def bench(verb, *arguments):
    """Run a verb; return its rows and the table that it printed."""
    given = (arguments[: arguments.index("--")], arguments[arguments.index("--") :])
    result = rbn("bench", verb, *given[0], "--json", "-", *given[1])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_norm_of_made_up_batches():
    rows, table = bench(
        "norm", "--tokens", 64, "--channels", "8,16", "--dtype", "float32,bfloat16",
        "--norms", "rms,groupscale+power", "--depth", 2, "--rounds", 1, "--",
    )  # fmt: skip
    norms = ["layer", "rms", "groupscale+power", "floor"]
    assert [row["norm"] for row in rows] == norms * 4
    assert [(row["dtype"], row["case"]) for row in rows[::4]] == [
        (dtype, f"64x{channels}") for dtype in ("float32", "bfloat16") for channels in (8, 16)
    ]
    assert all(row["ratio_to_layer"] == 1 for row in rows if row["norm"] == "layer")
    assert "groupscale+power" in table and rows[0]["machine"] and rows[0]["versions"]


def test_norm_replays_batches_of_data(data_bin):
    rows, _ = bench(
        "norm", data_bin, "--name", "numbers", "--max-tokens", 300, "--batches", 2,
        "--channels", 8, "--depth", 1, "--rounds", 1, "--evaluation", "--",
    )  # fmt: skip
    assert {row["case"] for row in rows} == {"numbers-source", "numbers-target"}
    assert {row["bench"] for row in rows} == {"norm, evaluation"}


def test_scaling(tmp_path):
    figure = tmp_path / "growth.svg"
    rows, _ = bench(
        "scaling", "--sweep", "layers", "--values", "1,2", "--tokens", 64, "--channels", 8,
        "--rounds", 1, "--figure", figure, "--",
    )  # fmt: skip
    assert [row["case"] for row in rows] == ["layers-1/64x8"] * 3 + ["layers-2/64x8"] * 3
    assert "layers of an encoder" in figure.read_text()


@pytest.mark.nightly  # bench/test_trainers.py has the same in parts
def test_train_with_fairseqs_own_model_and_mixed_batches(data_bin):
    rows, _ = bench(
        "train", data_bin, "--setting", "fairseq", "--setting", "batch", "--setting", "rbn",
        "--mixing", 4, "--updates", 1, "--rounds", 1, *SMALL, "--criterion", CRITERION,
    )  # fmt: skip
    names = ["fairseq", "batch", "rbn", "rbn, mixing 4"]
    kinds = {kind: [row for row in rows if row["bench"] == kind] for kind in ("train", "memory")}
    assert [row["norm"] for row in kinds["train"]] == [*names, "floor"]
    assert all(row["tokens"] > 0 and row["ms"] > 0 for row in kinds["train"])
    assert [row["norm"] for row in kinds["memory"]] == names
    sizes = [row["bytes"] for row in kinds["memory"]]
    assert [row["ratio_to_layer"] for row in kinds["memory"]] == [size / sizes[0] for size in sizes]
    assert len(set(sizes)) > 1
    assert [row["norm"] for row in rows if row["bench"] == "penalty"] == ["rbn - batch"]


def test_generate(data_bin):
    rows, _ = bench(
        "generate", data_bin, "--setting", "ln:", "--setting",
        f"none: {PLACEMENTS['post-norm']['none']}", "--rounds", 1, "--batches", 2, "--beam", 2,
        "--steps", 2, *SMALL,
    )  # fmt: skip
    cases = ("given, encoder", "given, beam 2")
    assert [(row["case"], row["norm"]) for row in rows] == [
        (case, norm) for case in cases for norm in ("ln", "none")
    ]
    assert [row["floor_ratio"] for row in rows if row["norm"] == "none"] == [1, 1]


def test_tid(data_bin):
    rows, _ = bench(
        "tid", data_bin, "--rounds", 1, "--batches", 2, *SMALL, "--norm-encoder", "batch"
    )
    assert [(row["norm"], row["n"]) for row in rows] == [("batch", 1)] * 6
    training, _, one, two, *_ = rows
    assert min(training["ms"], one["ms"], two["ms"], one["floor_ratio"]) > 0


@pytest.mark.parametrize(
    "settings, named",
    [
        (["--norm-encoder batch"], "--setting"),
        (["ln: --arch 'open"], "--setting"),
        (["layer", "layer: --dropout 0.3"], "--setting"),
        (["ln:", "x: --norm-encoder nonsense"], "`x`: --norm-encoder"),
        (["ln:", "x: --normm-encoder rms"], "--normm-encoder"),
        (["ln:", "x: --max-tokens 99"], "`x`: --max-tokens"),
        (["ln: --update-freq 2"], "--update-freq"),
    ],
)  # fmt: skip
def test_refused_settings(capsys, data_bin, settings, named):
    given = [part for each in settings for part in ("--setting", each)]
    assert named in user_error(capsys, "bench", "train", data_bin, *given, *SMALL)


def test_fairseqs_own_training_does_not_take_the_options_of_norms(capsys, data_bin):
    said = user_error(capsys, "bench", "train", data_bin, *SMALL, "--norm-encoder", "batch")
    assert "`fairseq`: " in said and "--norm-encoder batch" in said and "--setting layer" in said


@pytest.mark.parametrize(
    "verb, options, named",
    [
        ("norm", ("--norms", "bacth"), "--norms"),
        ("norm", ("--dtype", "float64"), "--dtype"),
        ("norm", ("--channels", "8,x"), "--channels"),
        ("norm", ("--threads", "0"), "--threads"),
        ("norm", ("--json", "nowhere/rows.json"), "--json"),
        ("scaling", ("--sweep", "time"), "--sweep"),
        ("scaling", ("--values", "64,x"), "--values"),
        ("scaling", ("--figure", "growth.txt"), "--figure"),
    ],
)
def test_refused_options(capsys, verb, options, named):
    assert named in user_error(capsys, "bench", verb, *options)


def test_data_have_their_own_tokens(capsys, data_bin):
    assert "--tokens" in user_error(capsys, "bench", "norm", data_bin, "--tokens", "32")


@pytest.mark.parametrize("verb", ["train", "tid", "generate"])
def test_output_is_tried_before_the_work(capsys, data_bin, tmp_path, verb):
    path = tmp_path / "nowhere" / "out.json"
    assert "--json" in user_error(capsys, "bench", verb, data_bin, "--json", path)
