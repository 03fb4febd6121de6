"""Placement, norm and seed of runs; groups and pairs."""

import json
from collections import defaultdict

import pytest

from rbn_fairseq.norms import NORMS, PopulationNorm
from rbn_fairseq.report.groups import group_runs
from rbn_fairseq.report.overview import settings_tables
from rbn_fairseq.report.runs import read_run
from rbn_fairseq.report.setups import describe
from run_directories import configuration, norm, write_run, write_run_file


@pytest.mark.parametrize(
    "plan, changes, name, bottom",
    [
        ("layer", {}, "LN", 0),
        ("batch", {}, "BN", 2),
        ("batch@0:layer", {}, "BN@0", 1),
        ("batch@0-1:layer", {}, "BN@0-1", 2),
        ("groupscale+power", {}, "PN+LS", None),
        ("batch", {"criterion.rbn_std_weight": 1.0}, "RBN", None),
        ("renorm", {"criterion.rbn_std_weight": 1.0}, "BRN with penalty", None),
        (
            "renorm",
            {"criterion.rbn_std_weight": 1.0, "model.norm_unit_embeddings": True},
            "BRN with penalty and FixNorm",
            None,
        ),
        ("batch", {"criterion.rbn_target_tid": "1,1"}, "RBN", None),
        ("batch", {"model.norm_batch_length_bins": 16}, "BN by length", None),
        ("layer", {"model.norm_decoder": "rms"}, "LN, decoder RMSNorm", None),
        ("repbn", {}, "RepBN", None),
        ("repbn", {"model.norm_repbn_layer_end": 9}, "PRepBN", None),
        ("batch@1.ffn:rms", {}, "batch@1.ffn:rms", None),
        ("layer", {"model.norm_unit_embeddings": True}, "LN with FixNorm", None),
        ("scale", {"model.norm_small_init": True}, "ScaleNorm with small init", None),
        (
            "layer",
            {"model.norm_weight": "wn", "model.norm_unit_embeddings": True},
            "LN with WN and FixNorm",
            None,
        ),
    ],
)
def test_names_of_norms(make, plan, changes, name, bottom):
    setup = describe(make("x", plan, changes=changes))
    assert (setup.norm, setup.bottom, setup.placement) == (name, bottom, "Post-Norm")


@pytest.mark.parametrize(
    "option, placement", [("sub", "Sub-LN"), ("peri", "Peri-LN"), ("hybrid", "HybridNorm")]
)
def test_setup(make, option, placement):
    changes = {"task.data": "data/iwslt/bin", "model.norm_placement": option}
    setup = describe(make("x", "RBN", "Pre-Norm", 3, changes, weights=(60, 0)))
    assert (setup.placement, setup.seed, setup.data) == (placement, 3, "iwslt/bin")
    assert setup.size == "2 + 2 layers, width 128, feed-forward 256, 4 heads"


def test_a_model_that_is_not_ours(tmp_path):
    cfg = configuration()
    sizes = {key: it for key, it in {
        f"{side}_{size}": 2 for side in ("encoder", "decoder")
        for size in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    }.items()}  # fmt: skip
    cfg["model"] = {"_name": "transformer", "encoder_normalize_before": True, **sizes}
    setup = describe(read_run("x", write_run(tmp_path / "x", cfg)))
    assert (setup.norm, setup.placement) == ("transformer", "Pre-Norm")
    cfg["model"] = {"_name": "lstm", "dropout": 0.1}  # which has no placement
    setup = describe(read_run("x", write_run(tmp_path / "y", cfg)))
    assert (setup.norm, setup.placement) == ("lstm", "")


def test_a_model_that_holds_the_whole_command_line(tmp_path, make, group):
    cfg = configuration(**{"criterion._name": "label_smoothed_cross_entropy"})
    copies = {key: "a copy" for section in ("dataset", "task", "optimizer") for key in cfg[section]}
    cfg["model"] = {**copies, "criterion": "a copy", "_name": "transformer", "dropout": 0.1}
    ours = make("ln", changes={"criterion._name": "cross_entropy_rbn"}.items())
    sizes = dict(describe(ours).sizes)
    cfg["model"] |= {"encoder_normalize_before": False, **sizes}
    foreign = read_run("x", write_run(tmp_path / "x", cfg))
    settings = describe(foreign).settings
    assert "a copy" not in settings.values() and settings["model.dropout"] == 0.1
    table, *_ = settings_tables(group([ours, foreign]), defaultdict(str))
    criterions = dict(zip(table.numbers["setting"], table.numbers["--criterion"], strict=True))
    assert criterions == {"LN": "cross_entropy_rbn", "transformer": "label_smoothed_cross_entropy"}
    assert table.numbers.columns.is_unique


def test_settings_unknown(tmp_path):
    directory = write_run(tmp_path / "x", configuration())
    (directory / "run.json").unlink()
    setup = describe(read_run("name", directory))
    assert (setup.norm, setup.placement, setup.sizes) == ("name", "", ())


def test_seeds_make_a_series_and_settings_several(make, group):
    runs = [make(f"bn{seed}", "BN", seed=seed) for seed in (2, 1)]
    runs += [make(f"rbn{weight}", "RBN", weights=(weight, 0)) for weight in (1, 60)]
    runs += [make("ln"), make("pre", placement="Pre-Norm")]
    one = group(runs)
    assert list(one.runs.index) == ["ln", "bn1", "bn2", "rbn1", "rbn60", "pre"]
    assert list(one.runs["series"]) == [0, 1, 1, 2, 3, 4]
    assert list(one.series["label"]) == ["LN", "BN", "RBN (λ 1)", "RBN (λ 60)", "LN"]
    assert one.placements == ["Post-Norm", "Pre-Norm"]


def test_runs_that_do_not_know_an_option_are_at_its_default(make, group):
    """Those of older versions, and of fairseq's own tasks."""
    old, runs = make("old", "BN"), []
    content = json.loads((old.directory / "run.json").read_text())
    del content["config"]["task"]["length_mixing"]
    (old.directory / "run.json").write_text(json.dumps(content))
    for seed, mixing in enumerate(("16", "1"), 2):
        runs.append(make(f"mixed{mixing}", "BN", seed=seed, changes={"task.length_mixing": mixing}))
    runs += [make(f"ln{mixing}", changes={"task.length_mixing": mixing}) for mixing in ("1", "16")]
    one = group([read_run("old", old.directory), *runs])
    series = one.runs.groupby("series").groups.values()
    assert {"old", "mixed1"} in map(set, series) and {"mixed16"} in map(set, series)
    pairs = one.pairs.set_index("run")["baseline"].to_dict()
    assert pairs == {"old": "ln1", "mixed1": "ln1", "mixed16": "ln16"}


def test_lengths_of_batches_are_in_every_label_where_they_differ(make, group):
    """A norm on one kind alone is compared with LN on that kind, and has to say which it is."""
    mixed = {"task.length_mixing": "16"}
    runs = [make("ln"), make("ln16", changes=mixed), make("bn16", "BN", changes=mixed)]
    labels = ["LN (length mixing 1)", "LN (length mixing 16)", "BN (length mixing 16)"]
    assert list(group([*runs, make("pre", placement="Pre-Norm")]).series["label"]) == [
        *labels,
        "LN",
    ]
    assert list(group(runs[1:]).series["label"]) == ["LN", "BN"]


def test_an_option_that_is_not_set_is_left_out_of_a_label(make, group):
    runs = [make(name, "BN", changes={"task.init_from": start}) for name, start in
            (("new", None), ("old", "old.pt"))]  # fmt: skip
    assert set(group(runs).series["label"]) == {"BN", "BN (from old.pt)"}


def test_options_that_tell_no_more_apart_are_left_out_of_a_label(make, group):
    short = {"optimization.max_epoch": 4, "optimization.max_update": 40, "dataset.max_tokens": 9}
    long = {"optimization.max_epoch": 8, "optimization.max_update": 80, "dataset.max_tokens": 10}
    runs = [
        make(
            f"{mixing}{length['dataset.max_tokens']}",
            changes={"task.length_mixing": mixing, **length},
        )
        for mixing in ("1", "16")
        for length in (short, long)
    ]
    one = group(runs)
    labels = {
        f"LN (length mixing {mixing}, max_tokens {tokens})"
        for mixing in (1, 16)
        for tokens in (9, 10)
    }
    assert set(one.series["label"]) == labels


def test_weights_are_always_in_a_label(make, group):
    runs = [make(f"rbn{weight}", "RBN", weights=(weight, weight)) for weight in (1, 60)]
    assert set(group(runs).series["label"]) == {"RBN (λ 1, ν 1)", "RBN (λ 60, ν 60)"}


def test_kind_of_bleu(make, group, tmp_path):
    assert group([make("ln"), make("bn", "BN")]).score_kind == "tokenised"
    assert group([make("scored", bleu=30.0)]).score_kind == "sacrebleu"


def test_another_optimizer_takes_no_settings_from_the_others(make, group):
    """Its own are not theirs, and theirs not its; each is compared with what has the same."""
    runs = []
    for kind, name, betas in (("LN", "adam", "a"), ("LN", "adam", "b"), ("BN", "adam", "b"),
                              ("LN", "nag", "")):  # fmt: skip
        changes = {"optimizer._name": name} | ({"optimizer.adam_betas": betas} if betas else {})
        runs.append(make(f"{kind}{name}{betas}", kind, changes=changes.items()))
    found = group(runs)
    assert found.runs["series"].nunique() == 4
    labels = found.runs["label"].to_dict()
    assert labels["LNnag"] == "LN (optimizer nag)" and "betas b" in labels["LNadamb"]
    assert found.pairs["baseline"].tolist() == ["LNadamb"]


def test_what_shapes_no_training_makes_no_series(make, group):
    free = {
        "task.tid_batches": 7, "task.no_tid": True, "task.conditioning_interval": 9,
        "dataset.num_workers": 4, "dataset.max_tokens_valid": 9, "task.eval_bleu": True,
        "optimization.update_freq": [1], "task.max_tokens": 9,
    }  # fmt: skip
    one = group([make("a", changes={"task.max_tokens": 8}), make("b", seed=2, changes=free)])
    assert list(one.runs["series"]) == [0, 0]


def test_data_and_sizes_make_groups(make):
    runs = [make("a"), make("b", changes={"task.data": "other"}),
            make("c", changes={"model.encoder_layers": 3})]  # fmt: skip
    assert [list(one.runs.index) for one in group_runs(runs)] == [["a"], ["b"], ["c"]]


def test_vocabularies_make_groups(tmp_path):
    def run(name, types):
        cfg = configuration(seed=len(name), **norm("LN"))
        sizes = dict.fromkeys(("de", "en"), types)
        return read_run(name, write_run(tmp_path / name, cfg, dictionaries=sizes))

    groups = group_runs([run("small", 100), run("large", 200)])
    assert [list(one.runs.index) for one in groups] == [["small"], ["large"]]
    assert groups[1].title.startswith("iwslt14 (de to en, 200 and 200 types); 2 + 2 layers")


def test_numbers_of_sentences_make_groups_but_of_language_models(tmp_path):
    def run(name, sentences, **task):
        cfg = configuration(seed=len(name), **norm("LN"))
        cfg["task"] |= task
        directory = write_run(tmp_path / name, cfg)
        write_run_file(directory, cfg, {"de": 9, "en": 9}, sentences=sentences)
        return read_run(name, directory)

    half, whole = group_runs([run("half", 200), run("whole", 400)])
    assert [list(one.runs.index) for one in (half, whole)] == [["half"], ["whole"]]
    assert "200 training sentences" in half.title and "400" in whole.title
    parts = [run("resumed", 40, data="a:b"), run("at-once", 400, data="a:b")]
    assert len(group_runs(parts)) == 1
    modes = [run("blocks", 50, sample_break_mode="none"), run("eos", 400, sample_break_mode="eos")]
    (one,) = group_runs(modes)
    assert set(one.runs["detail"]) == {"break mode none", "break mode eos"}


def test_of_two_runs_with_one_seed_the_longer_counts(make, group):
    one = group([make("short", nll=(5.0,)), make("long", nll=(5.0, 4.0))])
    assert list(one.runs.index) == ["long"]
    ((name, problem),) = one.twice
    assert name == "short" and "long" in problem


def test_layer_norm_of_another_recipe_is_no_baseline(make, group):
    other = {"optimization.lr": [0.1]}
    one = group([make("ln", changes=other), make("bn", "BN"), make("bn2", "BN", "Pre-Norm")])
    assert not len(one.pairs)
    longer = {"optimization.max_epoch": 30}
    one = group([make("long", changes=longer), make("same"), make("bn3", "BN")])
    assert list(one.pairs["baseline"]) == ["same"]
    lengths = [{"optimization.max_epoch": length} for length in (1, 30)]
    runs = [make("few", changes=lengths[0], nll=(5.0,)), make("many", changes=lengths[1])]
    assert list(group([*runs, make("bn4", "BN")]).pairs["baseline"]) == ["many"]


def test_layer_norm_with_the_same_beside_the_norm_is_the_baseline(make, group):
    fixed = {"model.norm_unit_embeddings": True}
    runs = [make("fixln", changes=fixed), make("fixbn", "BN", changes=fixed)]
    assert list(group(runs).pairs[["run", "baseline"]].itertuples(index=False, name=None)) == [
        ("fixbn", "fixln")
    ]
    both = group([make("ln"), make("bn", "BN"), *runs]).pairs.set_index("run")["baseline"]
    assert both.to_dict() == {"bn": "ln", "fixln": "ln", "fixbn": "fixln"}
    lengths = [{"optimization.max_epoch": length} for length in (4, 60)]
    four = [make(f"{name}{number}", changes=length | changes)
            for number, length in enumerate(lengths)
            for name, changes in (("p", {}), ("f", fixed))]  # fmt: skip
    both = group(four).pairs.set_index("run")["baseline"]
    assert both.to_dict() == {"f0": "p0", "f1": "p1"}
    weighted = make("weighted", "BN", changes={"model.norm_weight": "wn"})
    assert list(group([runs[0], make("ln2"), weighted]).pairs["baseline"]) == ["ln2", "ln2"]


def test_runs_without_settings_have_no_baseline(make, group):
    runs = [make("LN"), make("BN", "BN")]
    for run in runs:
        (run.directory / "run.json").unlink()
    assert not len(group([read_run(run.name, run.directory) for run in runs]).pairs)


def test_settings_that_mean_the_same(make, group):
    """Recipes and command lines write betas otherwise."""
    changes = [{"optimizer.adam_betas": betas} for betas in ("(0.9, 0.98)", "(0.9,0.98)")]
    one = group([make("ln", changes=changes[0]), make("bn", "BN", changes=changes[1])])
    assert list(one.pairs["baseline"]) == ["ln"]


def test_processes_and_micro_batches_differ_where_statistics_run(make, group):
    """Eight processes step their running statistics once an update, one process eight times."""
    runs = []
    for seed, (processes, frequency) in enumerate(((1, 8), (8, 1)), 1):
        changes = {"optimization.update_freq": [frequency],
                   "distributed_training.distributed_world_size": processes}  # fmt: skip
        runs += [make(f"{kind}{seed}", kind, seed=seed, changes=changes)
                 for kind in ("LN", "rms", "batch@0:layer", "BN", "RBN")]  # fmt: skip
    one = group(runs)
    settings = one.runs.groupby("norm")["series"].nunique().to_dict()
    assert settings == {"LN": 1, "RMSNorm": 1, "BN@0": 2, "BN": 2, "RBN": 2}
    baselines = dict(zip(one.pairs["run"], one.pairs["baseline"], strict=True))
    assert (baselines["BN1"], baselines["BN2"]) == ("LN1", "LN2")


@pytest.mark.parametrize(
    "name", [name for name, norm in NORMS.items() if norm.__module__.startswith("rbn_fairseq.")]
)
def test_steps_of_running_statistics_matter_to_norms_that_have_some(make, name):
    """The report knows them without torch, by their names."""
    run = make(name, name, changes={"optimization.update_freq": [8]})
    steps = describe(run).settings["steps of running statistics an update"]
    assert (steps is not None) == issubclass(NORMS[name], PopulationNorm)


BEGINNINGS = ["finetune_from_model", "continue_once", "restore_file", "init_from"]


@pytest.mark.parametrize("option", BEGINNINGS)
def test_what_a_training_began_from_is_a_setting(tmp_path, make, group, option):
    """But one's own directory, which is gone back to, and the seed of one's own parent."""
    runs = [make("scratch")]
    files = ["one/best.pt", "other/best.pt", "runs/checkpoint3.pt"]
    files += [f"/a/bn-seed{seed}/best.pt" for seed in (5, 6, 56)]
    files[-1] = "/b/bn-seed5/best.pt"  # of another's seed
    for seed, file in enumerate(files, 2):
        tuned = configuration(seed)
        tuned["checkpoint"] = {"save_dir": "runs"}
        tuned["task" if option == "init_from" else "checkpoint"][option] = file
        runs.append(read_run(file, write_run(tmp_path / str(seed), tuned)))
    series = group(runs).runs.groupby("series")
    seeds = {part["detail"].iloc[0]: len(part) for _, part in series}
    own = {"": 2} if option == "restore_file" else {"": 1, "from runs/checkpoint3.pt": 1}
    parents = {"one/best.pt": 1, "other/best.pt": 1, "bn-seed/best.pt": 2, "bn-seed5/best.pt": 1}
    assert seeds == own | {f"from {file}": number for file, number in parents.items()}


def test_losses_on_other_sentences_are_not_compared(make, group):
    def one(name, kind, **dataset):
        return make(name, kind, changes={f"dataset.{key}": it for key, it in dataset.items()})

    alike = {"valid_subset": "valid", "max_valid_steps": None}
    layer = one("ln", "LN", **alike)
    for other in ({"valid_subset": "test"}, {"max_valid_steps": 9}):
        batch = one(f"bn of {other}", "BN", **alike | other)
        assert not len(group([layer, batch]).pairs)
    more = {"valid_subset": "valid,test", "validate_interval": 2, "max_tokens_valid": 9}
    batch = one("bn", "BN", **alike | more)  # the first set is the same
    assert list(group([layer, batch]).pairs["baseline"]) == ["ln"]
