"""Which runs are compared, and which are averaged."""

import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
from run_directories import configuration, norm, write_run

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.gaps import bleu_gap, bleu_kind, nll_gap, points
from rbn_fairseq.report.grouping import group_runs
from rbn_fairseq.report.runs import read_run
from rbn_fairseq.report.series import mean_over_seeds
from rbn_fairseq.report.settings import check_agreement
from rbn_fairseq.report.setups import describe


@pytest.fixture
def make(make):
    """Write a run and read it at once."""
    return lambda *arguments, **options: make(*arguments, **options)()


def bleu(run):
    return run.scores["sacrebleu"]["bleu"] if run.scores else None


@pytest.mark.parametrize(
    "changes, placement, name",
    [
        ({}, "Post-Norm", "LN"),
        ({"model.norm_encoder": "batch"}, "Post-Norm", "BN"),
        ({"model.norm_encoder": "batch", "criterion.rbn_std_weight": 1.0}, "Post-Norm", "RBN"),
        ({"model.norm_encoder": "batch@0-3:layer"}, "Post-Norm", "BN@0-3"),
        ({"model.norm_encoder": "groupscale+power"}, "Post-Norm", "PN+LS"),
        ({"model.norm_encoder": "batch@1.ffn:rms"}, "Post-Norm", "batch@1.ffn:rms"),
        ({"model.norm_encoder": "batch", "model.norm_weight": "cwn"}, "Post-Norm", "BN, CWN"),
        ({"model.encoder_normalize_before": True}, "Pre-Norm", "LN"),
        ({"model.norm_placement": "deepnorm"}, "DeepNorm", "LN"),
        ({"model.norm_decoder": "batch"}, "Post-Norm", "LN, decoder BN"),
    ],
)
def test_names(make, changes, placement, name):
    setup = describe(make("x", changes=changes | {"model.encoder_layers": 6}))
    assert (setup.placement, setup.norm) == (placement, name)


@pytest.mark.parametrize(
    "plan, bottom",
    [("layer", 0), ("batch@0:layer", 1), ("batch@0-3:layer", 4), ("batch", 6), ("rms", None),
     ("batch@1-3:layer", None)],
)  # fmt: skip
def test_bottom_layers(make, plan, bottom):
    changes = {"model.norm_encoder": plan, "model.encoder_layers": 6}
    assert describe(make("x", changes=changes)).bottom == bottom


def test_sizes_are_those_of_the_architecture(make):
    group = group_runs([make("x")])[0]
    assert group.title == "iwslt14; 2 + 2 layers, width 128, feed-forward 256, heads 4"


def test_means_over_seeds(make):
    scores = [34.1, 34.5, 35.9]
    runs = [make(f"bn{n}", "BN", seed=n, bleu=it) for n, it in enumerate(scores, 1)]
    (group,) = group_runs([runs[2], *runs[:2]])
    (series,) = group.series
    assert series.seeds == (1, 2, 3) and series.detail == ""
    mean = mean_over_seeds(series, bleu)
    assert mean.value == pytest.approx(statistics.mean(scores))
    assert mean.deviation == pytest.approx(statistics.stdev(scores))
    assert mean.number == 3


def test_a_mean_of_one_has_no_deviation(make):
    (group,) = group_runs([make("a", seed=1, bleu=30), make("b", seed=2)])
    mean = mean_over_seeds(group.series[0], bleu)
    assert (mean.value, mean.deviation, mean.number) == (30, None, 1)


def test_settings_are_not_mixed(make):
    runs = [
        make("a", "RBN", seed=1, changes={"optimization.lr": [0.001]}),
        make("b", "RBN", seed=2, changes={"optimization.lr": [0.002]}),
        make("c", "RBN", seed=1, weights=(1.0, 0.0)),
    ]
    (group,) = group_runs(runs)
    assert [len(one.runs) for one in group.series] == [1, 1, 1]
    assert group.series[0].label == "RBN (λ 0.1, ν 0.01, lr 0.001)"
    assert {one.label for one in group.series} >= {"RBN (λ 1, ν 0, lr 0.0005)"}


@pytest.mark.parametrize("target, number", [(None, 1), ("1,1", 2)])
def test_step_and_cap_count_where_there_is_a_target(make, target, number):
    """Without one they act on nothing, and a run of before has other defaults."""
    held = {"model.norm_encoder": "batch", "criterion.rbn_target_tid": target}
    held["criterion.rbn_mean_weight"] = 0.0 if target else 1.0
    steps = {"criterion.rbn_target_step": 1e-4, "criterion.rbn_target_cap": 1.0}
    runs = [make("now", seed=1, changes=held), make("before", seed=2, changes=held | steps)]
    (group,) = group_runs(runs)
    assert len(group.series) == number


def test_options_that_older_versions_did_not_have_are_at_their_defaults(make):
    old, mixed, new, random, now = (
        make(name, "BN", seed=seed, changes=changes)
        for name, seed, changes in (
            ("old", 1, {}),
            ("mixed", 2, {"task.length_mixing": 16}),
            ("new", 3, {"task.length_mixing": 1, "criterion.rbn_warmup_updates": 0}),
            ("random", 4, {"task.length_mixing": "random"}),
            ("now", 5, {"task.length_mixing": "16"}),  # once an integer
        )
    )
    (group,) = group_runs([old, mixed, new, random, now])
    assert {one.label: [run.name for run in one.runs] for one in group.series} == {
        "BN (length mixing 1)": ["old", "new"],
        "BN (length mixing 16)": ["mixed", "now"],
        "BN (length mixing random)": ["random"],
    }


def test_a_norm_that_knows_no_penalty_hides_no_weights(make, tmp_path):
    cfg = configuration(**norm("LN"))
    cfg["criterion"] = {"_name": "label_smoothed_cross_entropy"}
    layer = read_run("ln", write_run(tmp_path / "ln", cfg))
    runs = [make(f"r{weight}", "RBN", weights=(weight, 0.0)) for weight in (0.1, 1.0)]
    (group,) = group_runs([layer, *runs])
    assert [one.label for one in group.series] == ["LN", "RBN (λ 0.1)", "RBN (λ 1)"]
    assert group.twice == ()


def test_data_and_sizes_are_apart(make):
    runs = [
        make("a"),
        make("b", changes={"task.data": "other/wmt16"}),
        make("c", changes={"model.encoder_layers": 4}),
        make("d", "BN"),
    ]
    groups = group_runs(runs)
    assert [[run.name for run in group.runs] for group in groups] == [["a", "d"], ["b"], ["c"]]
    assert groups[2].title.endswith("4 + 2 layers, width 128, feed-forward 256, heads 4")


@pytest.mark.parametrize(
    "changes",
    [
        {"task.tensorboard_logdir": "here"},
        {"task.restore_file": "x.pt"},
        {"task.conditioning_interval": 100},
        {"task.tid_batches": 10},
        {"task.update_freq": [2]},
        {"task.train_subset": "train"},
        {"task.max_epoch": 9, "optimization.max_epoch": 9},
        {"task.max_update": 9, "optimization.max_update": 9},
    ],
)
def test_copies_and_monitors_split_no_recipe(make, changes):
    plain = {name: None for name in changes if name.startswith("task.")}
    runs = [make("a", changes=plain), make("b", "BN", changes=changes)]
    (group,) = group_runs(runs)
    assert group.baseline(group.series[1]) is group.series[0]
    members = [
        SimpleNamespace(directory=run.name, placement="post", norm="ln", settings=settings)
        for run in (runs[0], make("c", changes=changes))
        for settings in [describe(run).settings]
    ]
    check_agreement(members)


def test_other_languages_and_vocabularies_are_apart(make):
    german, english = ({"de": 3000, "en": size} for size in (4000, 5000))
    runs = [
        make("cut"),  # a log without these lines
        make("a", "BN", dictionaries=german),
        make("b", dictionaries=english),
        make("c", dictionaries={"en": 4000, "de": 3000}),
        make("d", "RBN", changes={"task.source_lang": "en", "task.target_lang": "de"}),
    ]
    groups = group_runs(runs)
    found = [[run.name for run in group.runs] for group in groups]
    assert found == [["cut", "a"], ["b"], ["c", "d"]]
    assert [group.title.partition(";")[0] for group in groups] == [
        "iwslt14 (de to en, 3000 and 4000 types)",
        "iwslt14 (de to en, 3000 and 5000 types)",
        "iwslt14 (en to de, 4000 and 3000 types)",
    ]


def test_a_seed_counts_once(make):
    runs = [
        make("short", "BN", seed=1, nll=(5.0, 4.0), bleu=10),
        make("long", "BN", seed=1, bleu=30),
        make("other", "BN", seed=2, bleu=31),
    ]
    (group,) = group_runs(runs)
    (series,) = group.series
    assert [run.name for run in series.runs] == ["long", "other"]
    assert mean_over_seeds(series, bleu).number == 2
    ((name, problem),) = group.twice
    assert name == "short" and "seed 1 of long" in problem
    (problems,) = (it for it in sections(runs) if it.title == "Problems")
    assert [row[0].text for row in problems.blocks[0].rows] == ["short"]


def test_order(make):
    names = ["rms", "RBN", "BN", "batch@0:layer", "LN"]
    runs = [make(f"pre{n}", it, "Pre-Norm") for n, it in enumerate(names)]
    runs += [make("post", "BN")]
    (group,) = group_runs(runs)
    found = [(one.placement, one.norm) for one in group.series]
    pre = [("Pre-Norm", it) for it in ("LN", "BN@0", "BN", "RBN", "rms")]
    assert found == [("Post-Norm", "BN"), *pre]


def test_unknown_settings(make, tmp_path):
    run = make("known")
    (tmp_path / "old").mkdir()
    line = '{"epoch": 1, "valid_loss": "4.5", "valid_num_updates": "9"}\n'
    (tmp_path / "old" / "train.log").write_text(line)
    groups = group_runs([run, read_run("old", tmp_path / "old")])
    assert [group.title for group in groups][1] == "Settings unknown"
    assert groups[1].series[0].norm == "old"


def test_gap_to_the_same_seed_else_to_the_mean(make):
    runs = [
        make("l1", "LN", seed=1, nll=(5.0, 3.0), bleu=30),
        make("l2", "LN", seed=2, nll=(5.0, 4.0), bleu=32),
        make("b1", "BN", seed=1, nll=(5.0, 3.5), bleu=29, tid=(0.02, 0.1)),
        make("b9", "BN", seed=9, nll=(5.0, 4.5), bleu=28, tid=(0.03, 0.1)),
    ]
    (group,) = group_runs(runs)
    series = group.series[1]
    # Seed 1: 3.5 - 3 and 30 - 29; seed 9: 4.5 - 3.5 and 31 - 28.
    assert nll_gap(group, series) == (2, pytest.approx((0.5 + 1.0) / 2))
    assert bleu_gap(group, series, "sacrebleu") == pytest.approx((1 + 3) / 2)
    (point,) = points(group)
    assert point.tid == pytest.approx((12 + 13) / 2) and point.var_tid == pytest.approx(10)
    assert (point.bleu, point.nll) == (pytest.approx(2), pytest.approx(0.75))


def test_gap_at_the_last_epoch_of_both(make):
    length = {"optimization.max_epoch": 2}
    runs = [
        make("ln", "LN", nll=(5.0, 4.0, 2.0), bleu=30),
        make("bn", "BN", nll=(5.5, 4.25), changes=length, bleu=29),
    ]
    (group,) = group_runs(runs)
    assert nll_gap(group, group.series[1]) == (2, pytest.approx(0.25))
    assert bleu_gap(group, group.series[1], "sacrebleu") is None  # of other epochs


def test_tid_and_gap_are_of_one_epoch(make):
    runs = [
        make("l1", "LN", seed=1, nll=(5.0, 4.0, 2.0), bleu=30),
        make("b1", "BN", seed=1, nll=(5.5, 4.5, 4.0), tid=(0.1, 0.2), bleu=29),
        make("b2", "BN", seed=2, nll=(5.5, 5.0), tid=(0.1, 0.2)),  # has not ended
    ]
    points_of = {it.epoch: replace(it, layers=it.layers[:2]) for it in runs[1].tid}
    tid = tuple(points_of[epoch] if epoch == 2 else it for epoch, it in enumerate(runs[1].tid))
    runs[1] = replace(runs[1], tid=tid)
    (point,) = points(group_runs(runs)[0])
    # At epoch 2 the last of 2 layers has half of 10 and of 20 %; seed 2's all of it.
    assert point.tid == pytest.approx((15 + 30) / 2) and point.var_tid == pytest.approx(15)
    assert point.nll == pytest.approx((0.5 + 1.0) / 2) and point.bleu is None
    # A training that ends within an epoch is validated there, but TID is not measured.
    runs[1:] = [replace(run, tid=run.tid[:2]) for run in runs[1:]]
    (point,) = points(group_runs(runs)[0])
    assert point.nll == pytest.approx((0.5 + 0.5) / 2) and point.bleu is None
    runs[1:] = [replace(run, tid=run.tid[:1]) for run in runs[1:]]
    assert points(group_runs(runs)[0]) == []


def test_bleu_of_other_signatures_has_no_gap(make):
    runs = [make("ln", bleu=30), make("bn", "BN", bleu=29)]
    runs[1].scores["sacrebleu"]["signature"] = "nrefs:1|tok:none"
    (group,) = group_runs(runs)
    assert bleu_gap(group, group.series[1], "sacrebleu") is None


def test_no_baseline(make):
    runs = [
        make("ln", "LN", changes={"optimizer._name": "sgd"}),
        make("pre", "LN", "Pre-Norm"),
        make("bn", "BN", tid=(0.1, 0.1)),
    ]
    (group,) = group_runs(runs)
    assert points(group) == []


def test_kind_of_bleu(make):
    runs = [make("a", bleu=30), make("b", "BN", bleu=30)]
    runs[0].scores["tokenised"] = {"bleu": 31}
    assert bleu_kind(runs) == "sacrebleu"
    runs[1].scores["tokenised"] = {"bleu": 31}
    assert bleu_kind(runs) == "tokenised"
