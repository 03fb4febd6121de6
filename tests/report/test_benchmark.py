"""The paper's table from run directories: means, refusals, what is withheld, what is missing."""

import io
import json
import os
import statistics

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from benchmark_runs import SIGNATURES, Runs
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.report.benchmark import read_benchmark, records, spans
from rbn_fairseq.report.benchmark_table import notes, print_benchmark, rows
from rbn_fairseq.report.missing import missing_commands
from rbn_fairseq.report.paper import BENCHMARKS
from rbn_fairseq.report.settings import check_agreement

IWSLT = BENCHMARKS["iwslt14"]
WMT_KINDS = ("compound_split", "tokenised", "sacrebleu")
SIZES = [
    f"model.{side}_{size}"
    for side in ("encoder", "decoder")
    for size in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
]
STANDARD = {
    "corpus": "IWSLT14 De-En",
    "standard": True,
    "differences": [],
    "pairs": {"train": 160239, "valid": 7283, "test": 6750},
}


def paper_model(placement, size="iwslt_de_en"):
    """The named architecture; what it sets is left open, as a Hydra config leaves it."""
    name = f"rbn_transformer_{size}" + ("_pre" if placement == "pre" else "")
    return dict.fromkeys(SIZES, None) | {"model._name": name}


PAPER = {"epochs": range(55, 61), **paper_model("post")}


@pytest.fixture(scope="module")
def real_cfg(rbn_run):
    return read_checkpoint(rbn_run / "checkpoint_last.pt")["cfg"]


@pytest.fixture
def made(tmp_path, real_cfg):
    return Runs(tmp_path, real_cfg)


def read(made, name="iwslt14"):
    scored, unscored = read_benchmark(made.root, BENCHMARKS[name].kinds)
    check_agreement(scored)
    return scored, unscored


def table(made, name="iwslt14"):
    return {row[0]: row[1:] for row in rows(BENCHMARKS[name], *read(made, name))}


def lines(made, name="iwslt14"):
    return notes(BENCHMARKS[name], read(made, name)[0])


def commands(made, options=""):
    return missing_commands("iwslt14", *read(made), options)


def refusal(made, name="iwslt14"):
    with pytest.raises(ValueError) as error:
        read(made, name)
    return str(error.value)


def test_mean_and_deviation(made):
    bleu, without = [34.11, 34.52, 35.98], [33.0, 33.5, 34.6]
    for seed, (one, two) in enumerate(zip(bleu, without, strict=True), 1):
        made.evaluate("post", "bn", seed, one, two)
    made.evaluate("pre", "ln", 12, 20.5)
    row = table(made)["Post-BN"]
    assert row[0] == f"{statistics.mean(bleu):.2f} ± {statistics.stdev(bleu):.2f}"
    assert row[1] == "33.70"  # (33.0 + 33.5 + 34.6) / 3
    assert row[2] == f"{statistics.mean(bleu) - 1:.2f}"
    assert row[3] == "3 (1-3)"
    assert table(made)["Pre-LN"] == ["20.50", "", "19.50", "1 (12)", ""]


def test_recalibration_is_compared_on_the_same_seeds(made):
    made.evaluate("post", "bn", 1, 30.0, 29.0)
    made.evaluate("post", "bn", 2, 32.0)
    assert table(made)["Post-BN"][:2] == ["31.00 ± 1.41", ""]


def test_order_of_rows(made):
    made.evaluate("pre", "ln", 1, 20.0)
    made.train("post", "pn_only", 1)
    made.evaluate("post", "a+b", 1, 20.0)
    norms = ["LN", "BN", "RBN", "RBN (official)"]
    main = [f"{placement}-{norm}" for placement in ("Post", "Pre") for norm in norms]
    assert list(table(made)) == [*main, "Post-a+b", "Post-pn_only"]


def test_spans():
    assert spans((55, 56, 57, 58, 59, 60)) == "55-60"
    assert spans((1, 2, 5, 7, 8)) == "1-2, 5, 7-8"
    assert spans((3,)) == "3" and spans(()) == ""


def test_wmt_has_compound_split_bleu(made):
    made.about(**STANDARD | {"corpus": "WMT16 En-De"})
    arguments = {"kinds": WMT_KINDS, **paper_model("pre", "wmt_en_de")}
    made.evaluate("pre", "rbn", 1, 26.0, 25.0, updates=100_000, **arguments)
    # sacreBLEU is the last of three kinds: two points less.
    assert table(made, "wmt16")["Pre-RBN"] == ["26.00", "25.00", "24.00", "1 (1)", "26.2"]
    text = "\n".join(lines(made, "wmt16"))
    assert "this project's reading" in text
    assert f"compound-split BLEU4: {SIGNATURES['compound_split']}" in text


def test_wmt_ends_within_an_epoch(made):
    """The average is of whole epochs, and was made before the last update."""
    made.about(**STANDARD | {"corpus": "WMT16 En-De"})
    model = paper_model("pre", "wmt_en_de")
    ends = {"optimization.max_epoch": 0, "optimization.max_update": 100_000}
    made.train("pre", "rbn", 1, updates=100_000, **ends, **model)
    made.evaluate("pre", "rbn", 1, 26.0, kinds=WMT_KINDS, updates=97_000, **ends, **model)
    assert table(made, "wmt16")["Pre-RBN"][-1] == "26.2"


def test_wmt_cut_short(made):
    made.about(**STANDARD | {"corpus": "WMT16 En-De"})
    arguments = {"kinds": WMT_KINDS, **paper_model("pre", "wmt_en_de")}
    made.evaluate("pre", "rbn", 1, 26.0, updates=99_999, **arguments)
    assert table(made, "wmt16")["Pre-RBN"][-1] == ""
    assert "99,999 updates instead of 100,000" in "\n".join(lines(made, "wmt16"))


@pytest.mark.parametrize("updates, trained", [(99_999, False), (100_000, True)])
def test_training_that_ends_by_updates(made, updates, trained):
    ends = {"optimization.max_epoch": 0, "optimization.max_update": 100_000}
    made.train("pre", "rbn", 1, updates=updates, **ends)
    (run,) = read(made)[1]
    assert run.trained == trained


def test_wmt_of_another_model(made):
    made.about(**STANDARD | {"corpus": "WMT16 En-De"})
    big = paper_model("pre", "wmt_en_de_big")
    made.evaluate("pre", "rbn", 1, 26.0, kinds=WMT_KINDS, updates=100_000, **big)
    assert table(made, "wmt16")["Pre-RBN"][-1] == ""
    text = "\n".join(lines(made, "wmt16"))
    assert "model differs (encoder_embed_dim 1024 instead of 512" in text
    assert "data" not in text.partition("withheld")[2]
    assert "epochs 2" not in text.partition("withheld")[2]  # the paper tells no epochs
    assert "reading" not in text


def test_papers_numbers(made):
    made.about(**STANDARD)
    for norm in ("ln", "bn", "rbn", "rbn_official", "pn", "pn_ls", "brn", "mabn", "mine"):
        made.evaluate("post", norm, 1, 30.0, **PAPER)
    made.evaluate("pre", "rbn", 1, 30.0, **PAPER | paper_model("pre"))
    found = {name: row[-1] for name, row in table(made).items()}
    # Table 2 of the paper.
    assert found == {
        "Post-LN": "35.5", "Post-BN": "34.0", "Post-RBN": "35.5", "Post-RBN (official)": "35.5",
        "Pre-LN": "", "Pre-BN": "", "Pre-RBN": "35.6", "Pre-RBN (official)": "",
        "Post-PN-only": "0.0", "Post-PN+LS": "35.6", "Post-BRN": "35.3", "Post-MABN": "0.0",
        "Post-mine": "",
    }  # fmt: skip
    text = lines(made)
    assert not any("withheld" in line for line in text)
    caption = "train 160,239, valid 7,283, test 6,750 pairs; average of epochs 55-60"
    assert text[0] == f"IWSLT14 De-En; {caption}; max_tokens 1,000."
    assert text[1:3] == ["tokenised BLEU4: nrefs:1|tok:none", "sacreBLEU: nrefs:1|tok:13a"]


SUBSET = STANDARD | {"standard": False, "differences": ["train has 48,816 of 160,239 pairs"]}


@pytest.mark.parametrize(
    "about, changes, reason",
    [
        (SUBSET, {}, "data differ from the standard (train has 48,816 of 160,239 pairs)"),
        (STANDARD | {"corpus": "Mine"}, {}, "data are Mine, not IWSLT14 De-En"),
        (None, {}, "nothing says what the data are (no about.json beside them)"),
        (
            STANDARD,
            {"model.encoder_layers": 4, "model.decoder_layers": 2},
            "model differs (encoder_layers 4 instead of 6 and 1 more)",
        ),
        (STANDARD, {"epochs": [1]}, "epochs 1 instead of 55-60"),
        (STANDARD, {"epochs": range(54, 61)}, "epochs 54-60 instead of 55-60"),
    ],
)
def test_papers_numbers_are_withheld(made, about, changes, reason):
    if about is not None:
        made.about(**about)
    made.evaluate("post", "rbn", 1, 30.0, **PAPER | changes)
    assert table(made)["Post-RBN"][-1] == ""
    assert f"paper's numbers withheld: {reason}" in lines(made)


def test_all_reasons_are_told(made):
    made.about(**SUBSET)
    made.evaluate("post", "rbn", 1, 30.0)
    (line,) = (line for line in lines(made) if "withheld" in line)
    for reason in ("data differ", "model differs", "epochs 2-3 instead of 55-60"):
        assert reason in line


def both(cell, options=""):
    return " && ".join(
        f"bash scripts/iwslt14/{s}.sh {cell}{options}" for s in ("train", "evaluate")
    )


def test_commands_that_fill_missing_cells(made):
    options = "--preset small --max-epoch 1"
    norms = ("ln", "bn", "rbn", "rbn_official")
    cells = [f"{norm} {placement} 1 2 3" for placement in ("post", "pre") for norm in norms]
    assert commands(made, options) == [both(cell, f" {options}") for cell in cells]


def test_commands_for_unfinished_runs(made):
    made.evaluate("post", "ln", 1, 30.0)
    made.train("post", "ln", 10)
    made.train("post", "ln", 9)
    made.train("post", "bn", 4, last=2)
    (made.root / "post-rbn-seed7").mkdir()  # killed before its first checkpoint
    made.train("pre", "x", 1)
    (made.root / "notes").mkdir()
    damaged = made.train("pre", "x", 2) / "checkpoint_last.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    found = commands(made)
    assert found[:4] == [
        "bash scripts/iwslt14/evaluate.sh ln post 9 10",
        both("bn post 4"),
        both("rbn post 7"),
        both("rbn_official post 1 2 3"),
    ]
    assert found[-2:] == [both("x pre 2"), "bash scripts/iwslt14/evaluate.sh x pre 1"]
    assert table(made)["Post-BN"] == [""] * 5


@pytest.mark.parametrize("name", ["average.pt", "average_recalibrated.pt", "checkpoint_last.pt"])
def test_score_of_an_earlier_average(made, name):
    """Or of a training that went on since."""
    made.train("post", "ln", 1)
    directory = made.evaluate("post", "ln", 1, 30.0)
    for file in directory.iterdir():
        os.utime(file, (0, 0))
    assert len(read(made)[0]) == 1
    (directory / name).touch()
    assert read(made)[0] == []
    assert "bash scripts/iwslt14/evaluate.sh ln post 1" in commands(made)


def test_nothing_is_missing(made):
    for placement in ("post", "pre"):
        for norm in ("ln", "bn", "rbn", "rbn_official"):
            made.evaluate(placement, norm, 1, 30.0)
    assert commands(made) == []
    assert "To fill" not in printed(made)


@pytest.mark.parametrize(
    "name, values",
    [
        ("model.encoder_layers", (2, 3)),
        ("model.dropout", (0.1, 0.3)),
        ("dataset.max_tokens", (1000, 2000)),
        ("criterion.label_smoothing", (0.1, 0.0)),
        ("averaged epochs", ((2, 3), (1, 2, 3))),
        ("dictionaries", (["a", "b"], ["a", "c"])),
        ("effective batch", ([1], [2])),
        ("signature of sacrebleu", ("tok:13a", "tok:zh")),
    ],
)
def test_all_runs_must_agree(made, name, values):
    arguments = {
        "averaged epochs": lambda value: {"epochs": value},
        "dictionaries": lambda value: {"dictionaries": value},
        "effective batch": lambda value: {"optimization.update_freq": value},
        "signature of sacrebleu": lambda value: {"signatures": {"sacrebleu": value}},
    }
    make = arguments.get(name, lambda value: {name: value})
    first = made.evaluate("post", "ln", 1, 30.0, **make(values[0]))
    second = made.evaluate("pre", "bn", 1, 30.0, **make(values[1]))
    message = refusal(made)
    assert f"All runs of a table must agree on `{name}`" in message
    assert f"{values[0]} in `{first}`" in message and f"{values[1]} in `{second}`" in message
    assert "Move one of them elsewhere" in message


def test_all_runs_have_the_same_data(made, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    first = made.evaluate("post", "ln", 1, 30.0)
    second = made.evaluate("pre", "bn", 1, 30.0, **{"task.data": str(other)})
    message = refusal(made)
    assert f"`data`, but it is {made.data} in `{first}` and {other} in `{second}`" in message
    # The same data under another path.
    made.about(**STANDARD)
    (other / "about.json").write_text(json.dumps(STANDARD | {"made": "later"}))
    read(made)
    (other / "about.json").write_text(json.dumps(SUBSET))
    assert "48,816 of 160,239" in refusal(made)


@pytest.mark.parametrize(
    "name, value",
    [
        ("optimization.lr", [0.5]),
        ("lr_scheduler.warmup_updates", 50_000),
        ("optimizer.weight_decay", 1e-4),
        ("optimization.clip_norm", 1.0),
        ("dataset.batch_size", 8),
        ("task.truncate_source", True),
        ("common.fp16", True),
    ],
)
def test_runs_of_a_placement_share_the_recipe(made, name, value):
    changed = {name: value}
    made.evaluate("post", "ln", 1, 30.0)
    made.evaluate("pre", "ln", 1, 30.0, **changed)
    read(made)
    made.evaluate("pre", "rbn", 1, 30.0)
    message = refusal(made)
    assert "one placement (pre)" in message and f"`{name}`" in message
    assert "pre-ln-seed1" in message and "pre-rbn-seed1" in message


@pytest.mark.parametrize(
    "name, value",
    [
        ("criterion.rbn_mean_weight", 60.0),
        ("model.norm_batch_momentum", 0.1),
        ("criterion.rbn_convention", "official"),
    ],
)
def test_runs_of_a_cell_share_everything(made, name, value):
    made.evaluate("post", "rbn", 1, 30.0)
    made.evaluate("post", "other", 1, 30.0, **{name: value})
    read(made)  # other norms may
    made.evaluate("post", "rbn", 2, 30.0, **{name: value})
    message = refusal(made)
    assert "the row post rbn" in message and f"`{name}`" in message and f"and {value} in" in message
    assert "post-rbn-seed1" in message and "post-rbn-seed2" in message


def test_what_runs_of_a_cell_may_differ_in(made):
    made.evaluate("post", "rbn", 1, 30.0)
    elsewhere = {
        "checkpoint.save_dir": "/elsewhere", "task.save_dir": "/elsewhere", "common.log_file": "x",
        "dataset.num_workers": 9, "task.tid_batches": 5, "common.log_format": "json",
        "dataset.valid_subset": "valid1", "distributed_training.distributed_port": 99,
    }  # fmt: skip
    made.evaluate("post", "rbn", 2, 30.0, **elsewhere)
    read(made)


def processes(number, update_freq):
    return {
        "distributed_training.distributed_world_size": number,
        "optimization.update_freq": [update_freq],
    }


def test_effective_batch(made):
    made.evaluate("post", "rbn", 1, 30.0, **processes(1, 8))
    made.evaluate("post", "rbn", 2, 30.0, **processes(4, 2))
    made.evaluate("pre", "rbn", 2, 30.0, **processes(8, 1))
    read(made)
    made.evaluate("post", "rbn", 3, 30.0, **processes(4, 1))
    assert "`effective batch`, but it is [8]" in refusal(made)


def test_shared_statistics_are_of_as_many_processes(made):
    sync = {"model.norm_sync": True}
    made.evaluate("post", "rbn", 1, 30.0, **processes(1, 8), **sync)
    made.evaluate("post", "rbn", 2, 30.0, **processes(4, 2), **sync)
    assert "processes that share statistics" in refusal(made)


def test_settings_of_older_and_omegaconf_checkpoints(made):
    made.evaluate("post", "rbn", 1, 30.0)
    made.evaluate("post", "rbn", 2, 30.0, wrap=OmegaConf.create)
    made.evaluate("post", "rbn", 3, 30.0, wrap=without_new_options)
    assert table(made)["Post-RBN"][3] == "3 (1-3)"


def without_new_options(cfg):
    """As a version wrote it that had neither this option of the model nor this of fairseq's."""
    for section, name in (("model", "norm_batch_eps_mode"), ("dataset", "grouped_shuffling")):
        del cfg[section][name]
    cfg["dataset"]["grouped_shuffling"] = False
    return cfg


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"common.seed": 3}, "`common.seed` 2"),
        ({"model.decoder_normalize_before": True}, "`model.decoder_normalize_before` False"),
        ({"model.encoder_normalize_before": True}, "`model.encoder_normalize_before` False"),
        ({"model.norm_encoder": "layer"}, "`batch norm in the encoder` True"),
    ],
)
def test_directory_is_called_what_it_holds(made, changes, name):
    directory = made.evaluate("post", "rbn", 2, 30.0, **changes)
    message = refusal(made)
    assert str(directory) in message and name in message
    if "layer" not in changes.values():
        assert f"says {next(iter(changes.values()))}" in message


def test_directory_of_another_norm_is_called_what_it_holds(made):
    made.evaluate("post", "pn_ls", 2, 30.0, **{"model.norm_encoder": "power"})
    assert "`model.norm_encoder` groupscale+power, but its checkpoint says power" in refusal(made)


def test_score_without_average(made):
    directory = made.evaluate("post", "rbn", 2, 30.0)
    (directory / "average.pt").unlink()
    assert f"`{directory}` has a score.json but no average.pt" in refusal(made)


def replace(average, state):
    write_checkpoint(average, state)
    (average.parent / "score.json").touch()  # a score is of the average before it


@pytest.mark.parametrize("averaged", [None, [], ["a/checkpoint_best.pt"]])
def test_average_of_something_else(made, averaged):
    path = made.evaluate("post", "rbn", 2, 30.0) / "average.pt"
    state = read_checkpoint(path)
    state["rbn_fairseq"] = {} if averaged is None else {"averaged": averaged}
    replace(path, state)
    message = refusal(made)
    assert str(path) in message and "rbn average" in message
    assert ("checkpoint_best.pt" if averaged else "nothing") in message


def test_checkpoint_without_settings(made):
    path = made.evaluate("post", "rbn", 2, 30.0) / "average.pt"
    replace(path, {"model": {}, "cfg": None})
    assert f"`{path}` holds no settings" in refusal(made)


@pytest.mark.parametrize("name", ["score.json", "score_averaged_statistics.json"])
@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"a": 1}', '{"tokenised": {"bleu": 1}, "sacrebleu": {"signature": "x"}}'],
)
def test_damaged_score(made, name, content):
    path = made.evaluate("post", "rbn", 2, 30.0, 29.0) / name
    path.write_text(content)
    assert f"`{path}`" in refusal(made)


def test_score_without_compound_split_bleu(made):
    directory = made.evaluate("post", "rbn", 2, 30.0)
    message = refusal(made, "wmt16")
    assert f"`{directory / 'score.json'}` has no `compound_split`" in message


def test_scores_of_one_run_have_the_same_signatures(made):
    directory = made.evaluate("post", "rbn", 1, 30.0, 29.0)
    path = directory / "score_averaged_statistics.json"
    path.write_text(path.read_text().replace("tok:13a", "tok:zh"))
    message = refusal(made)
    assert str(directory) in message and "tok:13a" in message and "tok:zh" in message


def test_damaged_about(made):
    made.evaluate("post", "rbn", 1, 30.0)
    (made.data / "about.json").write_text("{")
    assert f"`{made.data / 'about.json'}` is not JSON" in refusal(made)


def test_no_directory(tmp_path):
    """Before the first run, the table names all commands."""
    assert read_benchmark(tmp_path / "none", IWSLT.kinds) == ([], [])


def printed(made, **console):
    file = io.StringIO()
    print_benchmark(Console(file=file, **console), "iwslt14", *read(made))
    return file.getvalue()


@pytest.fixture
def full(made):
    """A table as wide as can be expected."""
    made.about(**STANDARD)
    for seed in (1, 2, 4, 5):
        for norm in ("rbn", "rbn_official"):
            made.evaluate("post", norm, seed, 30.0 + seed, 29.0 + seed, **PAPER)
    return made


def test_markdown_where_there_is_no_terminal(full):
    found = printed(full, width=40).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[:10]]
    assert found[10] == ""
    assert cells[0] == [
        "", "tokenised BLEU4", "without recalibration", "sacreBLEU", "n (seeds)", "paper",
    ]  # fmt: skip
    assert all(set(cell) <= {"-", ":"} for cell in cells[1])
    # 31, 32, 34, 35: mean 33, squared deviations 4 + 1 + 1 + 4 over 3.
    last = ["33.00 ± 1.83", "32.00", "32.00", "4 (1-2, 4-5)", "35.5"]
    assert cells[5] == ["Post-RBN (official)", *last]
    assert both("bn post 1 2 3") in found  # not wrapped


@pytest.mark.parametrize("width", [80, 120])
def test_terminal(full, width):
    text = printed(full, width=width, force_terminal=True, color_system="standard")
    lines = text.splitlines()
    (line,) = (line for line in lines if line.startswith("Post-RBN (official)"))
    assert "33.00 ± 1.83" in line and "4 (1-2, 4-5)" in line
    assert "\x1b[2m35.5" in line.replace("\x1b[2m ", "\x1b[2m")  # dim
    assert both("bn post 1 2 3") in lines


def test_records(made):
    made.evaluate("post", "ln", 2, 30.25)
    made.evaluate("post", "bn", 10, 31.5, 30.75)
    scored, _ = read(made)
    batch, layer = records(scored, IWSLT.kinds)
    assert batch == {
        "placement": "post", "norm": "bn", "seed": 10, "averaged_epochs": [2, 3],
        "tokenised": {
            "bleu": 31.5, "without_recalibration": 30.75, "signature": "nrefs:1|tok:none",
        },
        "sacrebleu": {
            "bleu": 30.5, "without_recalibration": 29.75, "signature": "nrefs:1|tok:13a",
        },
    }  # fmt: skip
    assert layer["norm"] == "ln" and layer["tokenised"]["without_recalibration"] is None
