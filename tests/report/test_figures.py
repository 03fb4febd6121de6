"""Figures: which are drawn, with which numbers, and in which colours."""

import json
import math

import pytest

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import setting_colours
from rbn_fairseq.report.runs import read_run
from run_directories import WAYS, run_maker, tid_line, write_lines


@pytest.fixture(scope="module")
def full(tmp_path_factory, blocks):
    """Blocks of runs with everything that there are figures of."""
    make = run_maker(tmp_path_factory.mktemp("runs"))
    runs = [make("ln", nll=(5.0, 4.0, 3.0), bleu=30.0)]
    runs += [make(f"bn{seed}", "BN", seed=seed, nll=(5.0, 3.75, 3.5), bleu=28.5, tid=(0.02, 0.10))
             for seed in (1, 2)]  # fmt: skip
    runs += [make("part", "batch@0:layer", nll=(5.0, 4.0, 3.25), bleu=29.0, tid=(0.01, 0.05))]
    runs += [make(f"rbn{weight}", "RBN", weights=(weight, 0), nll=(5.0, 4.0, 2.75), bleu=31.0,
                  tid=(0.01, 0.04)) for weight in (1, 60)]  # fmt: skip
    for run in runs:
        rows = [
            {"epoch": epoch, "update": 100 * epoch, "layer": layer, "place": "stream",
             "c_50": 2.0 * epoch, "c_80": 3.0, "c_max": float("inf")}
            for epoch in (1, 2) for layer in (1, 2)
        ]  # fmt: skip
        write_lines(run.directory / "conditioning.jsonl", rows)
    bn = runs[1].directory
    ways = {"as-trained": 4, "random": 1, "mixed:4": 2}
    write_lines(bn / "tid_batching.jsonl", [
        tid_line(3, n, 0.005 * size * (n + 1), 0.02 * size, batching=way,
                 independent_mean_tid=0.01, independent_var_tid=0.02)
        for way, size in ways.items() for n in (0, 1)
    ])  # fmt: skip
    write_lines(bn / "cost.jsonl", [
        {"update": 100 * epoch, "statistics": way, "nll": 4.0 + cost, "cost": cost * epoch / 3}
        for epoch in (1, 2, 3) for way, cost in WAYS.items()
    ])  # fmt: skip
    return blocks([read_run(run.name, run.directory) for run in runs])


NAMES = {
    "validation", "figure1", "figure4", "figure2_top", "figure2_bottom", "figure3_left",
    "figure3_right", "figure5", "batching", "cost",
    "figure6_post_norm_stream", "figure7_post_norm_stream",
}  # fmt: skip


def test_everything_is_drawn(full):
    figures = {name: block for name, block in full.items() if isinstance(block, Figure)}
    assert set(figures) == NAMES and "problems" not in full
    for figure in figures.values():
        canvas = figure.draw()
        canvas.draw_without_rendering()
        assert len(figure.numbers) and figure.caption
        titles = [axes for axes in canvas.axes if axes.get_title("left")]
        assert all(axes.get_xlabel() for axes in titles if axes.has_data()), figure.name


def test_what_is_not_measured_is_left_out(make, blocks):
    made = blocks([make("ln"), make("ln2", seed=2)])
    assert {name for name, it in made.items() if isinstance(it, Figure)} == {
        "figure1",
        "validation",
    }


def numbers(figure, **where):
    frame = figure.numbers
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame


@pytest.mark.parametrize(
    "figure, run, quantity, values",
    [
        ("figure1", "bn2", "valid.nll_loss", [5, 3.75, 3.5]),
        ("figure4", "bn1", "average var_tid", [6.25] * 4),
        ("figure3_right", "rbn1", "nll_gap", [0, 0, -0.25]),
        ("figure2_bottom", "bn1", "mean_tid", [0.5, 1, 1.5, 2]),
        ("figure6_post_norm_stream", "ln", "c_50 stream layer 1", [2, 4]),
    ],
)  # fmt: skip
def test_numbers_of_curves(full, figure, run, quantity, values):
    points = numbers(full[figure], run=run, quantity=quantity)
    assert points["value"].tolist() == pytest.approx(values)
    assert points["x"].is_monotonic_increasing and points["seed"].nunique() == 1


def test_numbers_of_sweeps(full):
    left = full["figure3_left"].numbers
    assert left["L"].tolist() == [0, 1, 2] and left["bleu_gap"].tolist() == [0, 1, 1.5]
    weights = full["figure5"].numbers.set_index("lambda")["bleu"]
    assert weights.to_dict() == {1: 31, 60: 31, 0: 28.5}


def test_means_of_an_earlier_epoch_are_told(make, blocks):
    """Of Figures 3 and 5, and of Table 4."""
    runs = [make("ln"), make("bn", "BN", tid=(0.02, 0.1), nll=(5.0, 4.5)),
            make("part", "batch@0:layer", tid=(0.02, 0.1))]  # fmt: skip
    runs += [make(f"rbn{weight}", "RBN", weights=(weight, 0)) for weight in (1, 60)]
    made = blocks(runs)
    for block, names in (
        ("figure3_left", ["TID", "The gap"]),
        ("figure5", ["Valid nll"]),
        ("table4", ["TID"]),
    ):
        notes = [note for note in made[block].notes if "of an earlier one" in note]
        assert [note.partition(" is of epoch 3")[0] for note in notes] == names
        assert all(note.endswith(": Post-Norm BN (2).") for note in notes)


def test_a_layer_norm_that_has_no_validation_is_not_denied(make, blocks):
    made = blocks([make("ln", nll=()), make("bn", "BN", tid=(0.02, 0.1))])
    (note,) = made["figure3_right"].notes
    assert note.startswith("Gap:") and "there is no layer norm" not in note


def test_scores_of_figures_are_of_trainings_that_have_ended(make, blocks):
    runs = [make(f"{name}{seed}", plan, seed=seed, bleu=30.0 - seed - loss, tid=(0.02, 0.1),
                 weights=(loss, 0), nll=(5.0, 4.0, 3.0)[: 4 - seed])
            for name, plan, loss in (("ln", "LN", 0), ("part", "batch@0:layer", 1), ("bn", "BN", 2),
                                     ("rbn", "RBN", 3), ("more", "RBN", 4))
            for seed in (1, 2)]  # fmt: skip
    made = blocks(runs)
    assert made["figure3_left"].numbers["bleu_gap"].tolist() == [0, 1, 2]
    assert made["figure5"].numbers.set_index("lambda")["bleu"].to_dict() == {0: 27, 3: 26, 4: 25}
    for name in ("figure3_left", "figure5"):
        assert any("bn2" in note and "ended earlier" in note for note in made[name].notes)


def test_numbers_of_sources(full):
    last = numbers(full["batching"], kind="mean").iloc[-1]
    assert last["sampling_squared_percent"] == pytest.approx(1)
    assert last["bucketing_squared_percent"] == pytest.approx(16 - 1)
    assert last["independent_squared_percent"] == pytest.approx(1)


def test_numbers_of_costs(full):
    cost = full["cost"].numbers.set_index("statistics")["cost"]
    assert cost["running"] == 0.02 and cost["batch"] == 0  # of the last checkpoint
    summary = full["summary"].texts().set_index(full["summary"].columns[0])
    (column,) = (name for name in summary if "cost" in name)
    assert summary[column]["bn1"] == "0.0200"


def test_costs_that_are_drawn(make, blocks):
    """Not those of a training that diverged, nor by length after mixed batches: that costs more."""
    mixed = {"task.length_mixing": "16"}
    runs = [make("bn", "BN"), make("bn2", "BN", seed=2, nll=(5.0, math.nan)),
            make("mixed", "BN", changes=mixed)]  # fmt: skip
    costs = {"running": 0.25, "length-conditional": 0.5}
    for run, factor in zip(runs, (1, 1000, 1), strict=True):
        line = {"checkpoint": "checkpoint1.pt", "update": 100, "nll": 4.0, "cost_random": 0.0}
        lines = [line | {"statistics": way, "cost": factor * cost} for way, cost in costs.items()]
        write_lines(run.directory / "cost.jsonl", lines)
    figure = blocks([read_run(run.name, run.directory) for run in runs])["cost"]
    heights = [bar.get_height() for bar in figure.draw().axes[0].patches]
    assert sorted(heights, key=str) == [0.25, 0.25, 0.5, pytest.approx(math.nan, nan_ok=True)]
    assert any(note.endswith(": bn2.") for note in figure.notes)
    assert any("Length-conditional is not drawn" in note for note in figure.notes)


def test_a_seed_without_a_finite_loss_stays_on_the_page(make, blocks):
    runs = [make("bn1", "BN"), make("bn2", "BN", seed=2, nll=[float("nan")] * 3)]
    (curve,) = blocks(runs)["figure1"].panels[0].curves
    one, other = curve.data()["runs"]
    assert (one["run"], other["run"]) == ("bn1", "bn2") and other["value"] == ["NaN"] * 3


def test_a_loss_that_is_not_finite_is_drawn_at_the_edge(make, blocks):
    figure = blocks([make("ln", nll=(5.0, float("nan"), float("inf")))])["figure1"]
    canvas = figure.draw()
    labels = [text.get_text() for legend in canvas.legends for text in legend.get_texts()]
    assert any("not finite" in label for label in labels)


@pytest.mark.parametrize("last, linear_to", [(3.4, None), (9.0, 0.1)])
def test_a_setting_far_away_leaves_the_others_apart(make, blocks, last, linear_to):
    losses = {"layer": (5.0, 4.0, 3.0), "batch": (5.05, 3.95, 2.94), "rms": (5.04, 3.96, 2.97)}
    losses["dyt"] = (5.06, 4.2, last)
    runs = [make(norm, norm, nll=nll) for norm, nll in losses.items()]
    figure = blocks(runs)["validation"]
    (difference,) = [it for it in figure.panels if it.line == 0]
    assert difference.linear_to == difference.data()["linear_to"] == linear_to
    (axes,) = [it for it in figure.draw().canvas.figure.axes if "minus" in it.get_title("left")]
    assert axes.get_yscale() == ("linear" if linear_to is None else "symlog")
    assert ("beyond ±0.1" in axes.get_ylabel()) == (linear_to is not None)


def test_groups_have_figures_of_their_own(make, blocks):
    made = blocks([make("a"), make("b", changes={"model.encoder_layers": 3})])
    assert {"figure1", "figure1_2", "table2", "table2_2"} <= set(made)


def norm_colours(norms):
    return setting_colours([(norm, norm) for norm in norms])


def test_colours():
    colours = norm_colours(["LN", "BN", "BN@0", "BN@0-3", "rms", "prms"])
    assert colours["LN"] == norm_colours(["LN"])["LN"] and len(set(colours.values())) == 6
    assert len(set(norm_colours([f"norm {number}" for number in range(20)]).values())) == 20


def test_settings_of_one_norm_have_colours_of_their_own():
    settings = [("LN", "LN"), ("RBN", "RBN (λ 1)"), ("RBN", "RBN (λ 60)"), ("BN", "BN")]
    colours = setting_colours(settings)
    norms = norm_colours(["LN", "RBN", "BN"])
    assert {norm: colours[norm] for norm in norms} == norms
    assert colours["RBN (λ 1)"] == norms["RBN"]
    assert len({colours[label] for _, label in settings}) == 4
    grid = setting_colours([("RBN", f"RBN {number}") for number in range(25)])
    assert set(grid.values()) == {norms["RBN"]}  # more than can be told apart
    assert len(set(setting_colours([(n, n + s) for n in ("LN", "BN", "RBN", "BRN", "MABN")
                                    for s in "abc"]).values())) == 15  # fmt: skip


def test_panels_say_what_the_picture_shows(full, make, blocks):
    """What the page's script draws: by update and minutes too, and as difference to LN's."""
    for figure in full.values():
        for panel in getattr(figure, "panels", ()):
            json.dumps(panel.data(), allow_nan=False)
    runs = {
        run["run"]: run
        for curve in full["figure1"].panels[1].data()["curves"]
        for run in curve["runs"]
    }
    assert runs["bn1"]["value"] == [5, 3.75, 3.5] and runs["bn1"]["difference"] == [0, -0.25, 0.5]
    assert runs["bn1"]["update"] == [100, 200, 300] and runs["bn1"]["minutes"] == [1, 2, 3]
    assert "difference" not in runs["ln"]
    lost = blocks([make("x", nll=(5.0, float("nan"), float("inf")))])["figure1"]
    (curve,) = lost.panels[1].data()["curves"]
    assert curve["runs"][0]["value"] == [5, "NaN", "∞"]


def test_a_dollar_sign_in_a_name_is_drawn_as_it_is(make, blocks):
    run = make("a$b$c", "BN", tid=(0.02, 0.1))
    blocks([run])["figure4"].draw().draw_without_rendering()


def test_a_curve_that_ends_early_has_no_mean_there(make, blocks):
    runs = [make("a", nll=(5.0, 4.0)), make("b", seed=2, nll=(3.0,))]
    canvas = blocks(runs)["figure1"].draw()
    (axes,) = [it for it in canvas.axes if "valid nll" in it.get_title("left")]
    (bold,) = [line for line in axes.get_lines() if line.get_label() == "LN"]
    assert bold.get_xydata().tolist() == [[1, 4.0]]
    assert json.dumps([line.get_color() for line in axes.get_lines()]).count("#0072B2") == 3


def test_validations_within_epochs(make, blocks):
    run = make("bn", "BN")
    log = run.directory / "train.log"
    rows = log.read_text().splitlines(keepends=True)
    middle = (
        rows[2].replace("num_updates 200", "num_updates 150").replace("nll_loss 4.0", "nll_loss 9")
    )
    assert "valid | epoch 002" in middle
    log.write_text("".join([*rows[:2], middle, *rows[2:]]))
    made = blocks([read_run("bn", run.directory)])
    nll = numbers(made["figure1"], quantity="valid.nll_loss")
    assert nll["value"].tolist() == [5.0, 4.0, 3.5]


def test_weights_of_the_penalty_before_a_validation(make, blocks):
    runs = [make(f"r{weight}", "RBN", weights=(weight, 0), nll=(), tid=(0.1, 0.1))
            for weight in (1, 2, 3)]  # fmt: skip
    assert "figure5" not in blocks(runs)


def test_a_map_of_losses_is_called_so(make, blocks):
    runs = [make(f"r{weight}", "RBN", weights=(weight, 0.1)) for weight in (0.1, 0.2, 0.3)]
    assert "validation nll over the weights" in blocks(runs)["figure5"].title
    scored = [make(f"s{weight}", "RBN", weights=(weight, 0.1), bleu=30.0)
              for weight in (0.1, 0.2, 0.3)]  # fmt: skip
    lost = make("lost", "RBN", weights=(0.4, 0.1), nll=(5.0, math.nan))
    assert "BLEU over the weights" in blocks([*scored, lost])["figure5"].title
