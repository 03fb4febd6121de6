"""The report's figures: every line against the runs that were written."""

import math

import pytest
from run_directories import WAYS, tid_line, write_lines

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import norm_colours


def lines_of(figure, quantity):
    """Points by run."""
    found = {}
    for row in figure.rows:
        line = dict(zip(figure.header, row, strict=True))
        if line["quantity"] == quantity:
            found.setdefault(line["run"], []).append((line["x"], line["value"]))
    return found


def test_curves(main, blocks):
    found = blocks(main)
    valid = lines_of(found["figure1"], "valid.nll_loss")
    assert valid["bn"] == [(1, 5.0), (2, 3.75), (3, 3.5)]
    assert lines_of(found["figure1"], "train.nll_loss")["bn"] == [(1, 6.0), (2, 4.75), (3, 4.5)]
    assert lines_of(found["figure1"], "valid.bleu")["ln"] == [(1, 11), (2, 12), (3, 13)]
    assert lines_of(found["penalty"], "train.rbn_mean") == {"rbn": [(1, 4.0), (2, 4.0), (3, 4.0)]}
    gap = lines_of(found["figure3_right"], "nll_gap")
    assert gap["bn"] == [(1, 0.0), (2, -0.25), (3, 0.5)]
    tid = lines_of(found["figure4"], "average var_tid")
    assert tid["bn"] == [(epoch, pytest.approx(6.25)) for epoch in range(4)]
    depth = lines_of(found["figure2_bottom"], "var_tid")
    assert depth["bn"] == [(n, pytest.approx(2.5 * n)) for n in (1, 2, 3, 4)]


def test_every_figure_draws(main, blocks):
    for block in blocks(main).values():
        if isinstance(block, Figure):
            canvas = block.draw()
            assert canvas.axes and block.caption and block.rows
            assert all(len(row) == len(block.header) for row in block.rows)
        else:
            assert all(len(row) == len(block.columns) for row in block.rows)


def test_seeds_are_thin_and_the_mean_bold(make, blocks):
    runs = [make(f"b{n}", "BN", seed=n, nll=(5.0, 3.0 + n))() for n in (1, 2)]
    axes = blocks(runs)["figure1"].draw().axes[1]
    thin = [line for line in axes.get_lines() if line.get_linewidth() < 1]
    (bold,) = (line for line in axes.get_lines() if line.get_linewidth() > 2)
    assert len(thin) == 2 and list(bold.get_ydata()) == [5.0, 4.5]
    assert {line.get_color() for line in axes.get_lines()} == {norm_colours(["BN"])["BN"]}


def test_many_settings_share_one_entry(make, blocks):
    runs = [
        make(f"r{n}", "RBN", weights=(n, 1), tid=(0.1, 0.1) if n < 3 else None)() for n in range(5)
    ]
    found = blocks(runs)
    labels = [
        {text.get_text() for text in found[name].draw().legends[0].get_texts()}
        for name in ("figure1", "channels", "figure2_bottom")
        if name in found
    ]
    assert labels[0] == {"RBN, 5 settings"}
    assert labels[1] == {f"RBN (λ {n})" for n in range(3)}  # the others were not measured


def test_paper_lines(main, blocks):
    axes = blocks(main)["figure4"].draw().axes[1]
    labelled = [line for line in axes.get_lines() if "paper" in line.get_label()]
    assert [set(line.get_ydata()) for line in labelled] == [{4.1}]
    assert "not those here" in blocks(main)["figure4"].caption


def test_bottom_layers(make, blocks):
    plans = ["layer", "batch@0:layer", "batch@0-1:layer", "batch"]
    size = {"model.encoder_layers": 3}
    runs = [
        make(f"L{n}", plan, changes=size | {"model.norm_encoder": plan}, bleu=30.0 - n,
             tid=(0.01, 0.01 * n) if n else None, norms=2 * n)()
        for n, plan in enumerate(plans)
    ]  # fmt: skip
    figure = blocks(runs)["figure3_left"]
    assert figure.rows == tuple(
        ("Post-Norm", "", n, pytest.approx(n), pytest.approx(n)) for n in (0, 1, 2, 3)
    )
    assert figure.notes == ()
    (note,) = blocks([runs[0], runs[1], runs[3]])["figure3_left"].notes
    assert "L = 2, `rbn train … --norm-encoder batch@0-1:layer`" in note and "L = 1" not in note
    assert figure.header[-1] == "bleu_gap" and figure.draw().axes
    runs[1].scores.clear()
    assert blocks(runs)["figure3_left"].header[-1] == "nll_gap"


def test_sweeps_of_bottom_layers_are_apart(make, blocks):
    plans, runs = ["layer", "batch@0:layer", "batch"], []
    for scale, momentum in ((1, 0.1), (2, 0.2)):
        for n, plan in enumerate(plans):
            changes = {"model.norm_encoder": plan, "model.norm_batch_momentum": momentum}
            tid = (0.01, 0.01 * n * scale) if n else None
            run = make(f"{plan}{scale}", plan, changes=changes, tid=tid)
            runs += [run()] if n or scale == 1 else []
    figure = blocks(runs)["figure3_left"]
    found = {(row[1], row[2]): row[3] for row in figure.rows}
    assert found == {
        (f"norm_batch_momentum {momentum}", n): pytest.approx(n * scale)
        for scale, momentum in ((1, 0.1), (2, 0.2))
        for n in (0, 1, 2)
    }
    labels = {text.get_text() for text in figure.draw().legends[0].get_texts()}
    assert labels == {f"Post-Norm, norm_batch_momentum {it}" for it in (0.1, 0.2)}


def test_maps_of_weights_are_apart(make, blocks):
    runs = []
    for n, changes in enumerate(
        ({}, {"criterion.rbn_reduction": "token"}, {"model.norm_batch_eps": 1})
    ):
        changes = {"criterion.rbn_reduction": "sum", "model.norm_batch_eps": 0.5} | changes
        for mean in (0.1, 0.2, 0.3):
            bleu = 10 * n + 10 * mean
            run = make(f"r{n}{mean}", "RBN", weights=(mean, 0.0), changes=changes, bleu=bleu)
            runs.append(run())
    runs.append(make("bn", "BN", changes=changes, bleu=29.0)())
    figure = blocks(runs)["figure5"]
    expected = [[1, 2, 3], [11, 12, 13], [21, 22, 23, 29]]
    settings = dict.fromkeys(row[2] for row in figure.rows)
    found = [sorted(row[5] for row in figure.rows if row[2] == it) for it in settings]
    assert found == [pytest.approx(values) for values in expected]
    assert "reduction token" in list(settings)[1] and len(figure.draw().axes) == 6


def test_penalty_weights(make, blocks):
    pairs = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (1.0, 0.1)]
    runs = [make(f"r{n}", "RBN", weights=pair, bleu=30.0 + n)() for n, pair in enumerate(pairs)]
    runs.append(make("pre", "RBN", "Pre-Norm", bleu=10.0)())
    figure = blocks(runs)["figure5"]
    found = {row[3:5]: row[5] for row in figure.rows}
    assert found == {pair: 30.0 + n for n, pair in enumerate(pairs)}
    assert {row[0] for row in figure.rows} == {"Post-Norm"}
    texts = {text.get_text() for text in figure.draw().axes[0].texts}
    assert texts == {"30.0", "31.0", "32.0", "33.0"}


def test_conditioning(make, tmp_path, blocks):
    run = make("rbn", "RBN", "Pre-Norm")
    write_lines(tmp_path / "rbn" / "conditioning.jsonl", [
        {"epoch": 1, "update": u, "layer": layer, "place": "stream", "c_50": 10.0 * layer,
         "c_80": math.inf if u == 20 else 50.0, "c_max": math.nan if u == 10 else 7.0}
        for u in (10, 20, 30) for layer in (2, 4)
    ])  # fmt: skip
    found = blocks([run()])
    assert "figure6_pre_norm_normalised" not in found
    six, seven = found["figure6_pre_norm_stream"], found["figure7_pre_norm_stream"]
    assert lines_of(six, "c_50 stream layer 4")["rbn"] == [(10, 40.0), (20, 40.0), (30, 40.0)]
    assert lines_of(six, "c_80 stream layer 2")["rbn"][1] == (20, math.inf)
    canvas = six.draw()
    assert [axes.get_title(loc="left") for axes in canvas.axes[:2]] == [
        "C_50, layer 2",
        "C_50, layer 4",
    ]
    marks = [line for line in canvas.axes[2].get_lines() if line.get_marker() == "^"]
    assert [list(line.get_xdata()) for line in marks if len(line.get_xdata())] == [[20]]
    crosses = [line for line in seven.draw().axes[0].get_lines() if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses if len(line.get_xdata())] == [[10]]


def test_where_tid_comes_from(make, tmp_path, blocks):
    run = make("bn", "BN", tid=(0.02, 0.1))
    write_lines(tmp_path / "bn" / "tid_batching.jsonl", [
        tid_line(3, n, mean, 0.01, batching=way,
                 independent_mean_tid=0.015 if way == "as-trained" else 0.5)
        for way, means in {"as-trained": (0.05, 0.02), "random": (0.03, 0.03),
                           "permuted": (0.01, 0.01), "mixed:4": (0.025, 0.01)}.items()
        for n, mean in enumerate(means)
    ])  # fmt: skip
    found = blocks([run()])
    figure = found["batching"]
    mean = [row[3:] for row in figure.rows if row[1] == "mean"]
    assert mean[0] == pytest.approx((9, 25 - 9, 1, 2.25))
    assert mean[1] == pytest.approx((9, 4 - 9, 1, 2.25))  # negative, and told
    assert any("negative" in note and "bn, mean: 2" in note for note in figure.notes)
    bars = figure.draw().axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([9, 9, 16, -5])
    assert [bar.get_y() for bar in bars] == pytest.approx([0, 0, 9, 0])
    means = {row[2]: row[3] for row in found["buckets"].rows}
    assert means == {1: 0.02, 4: 0.01, "random": 0.03}
    law = found["buckets"].draw().axes[0].get_lines()[0]
    assert list(law.get_ydata()) == pytest.approx([2, 1])  # 1 / sqrt(4)


def test_batches_as_trained_stand_at_the_length_mixing_of_the_training(make, tmp_path, blocks):
    run = make("bn", "BN", changes={"task.length_mixing": 4}, tid=(0.02, 0.1))
    write_lines(tmp_path / "bn" / "tid_batching.jsonl", [
        tid_line(3, 0, mean, 0.01, batching=way)
        for way, mean in {"as-trained": 0.01, "mixed:16": 0.006, "mixed:4": 0.011}.items()
    ])  # fmt: skip
    figure = blocks([run()])["buckets"]
    assert {row[2]: row[3] for row in figure.rows} == {4: 0.01, 16: 0.006}
    law, measured = figure.draw().axes[0].get_lines()
    assert list(law.get_ydata()) == pytest.approx([1, 0.5])  # sqrt(4 / 16)
    assert list(measured.get_ydata()) == pytest.approx([1, 0.6])


def test_tid_by_number_of_processes(make, tmp_path, blocks):
    measured = [
        tid_line(3, 0, mean, 0.01, batching=way)
        for way, mean in {"as-trained": 0.01, "joint:4": 0.004, "mixed:16": 0.5}.items()
    ]
    run = make("bn", "BN", tid=(0.02, 0.1))
    write_lines(tmp_path / "bn" / "tid_batching.jsonl", measured)
    mixed = make("mixed", "BN", changes={"task.length_mixing": 4}, tid=(0.02, 0.1))
    write_lines(tmp_path / "mixed" / "tid_batching.jsonl", measured)
    assert "processes" not in blocks([mixed()])  # joint batches are of fairseq's, not of its own
    random = make("random", "BN", changes={"task.length_mixing": "random"}, tid=(0.02, 0.1))
    write_lines(tmp_path / "random" / "tid_batching.jsonl", measured)
    assert not {"processes", "buckets"} & set(blocks([random()]))
    assert {row[0] for row in blocks([run(), random()])["buckets"].rows} == {"bn"}
    figure = blocks([run()])["processes"]
    assert {row[2]: row[3] for row in figure.rows} == {1: 0.01, 4: 0.004}
    law, measured = figure.draw().axes[0].get_lines()
    assert list(law.get_ydata()) == pytest.approx([1, 0.5])
    assert list(measured.get_xdata()) == [1, 4]
    assert list(measured.get_ydata()) == pytest.approx([1, 0.4])
    assert figure.draw().axes[0].get_xlabel() == "W, processes"


def test_layers_are_joined_by_name(make, tmp_path, blocks):
    run = make("bn", "BN", tid=(0.02, 0.1))
    lines = [tid_line(3, n, 0.05 - 0.01 * n, 0.01) for n in (0, 1)]
    write_lines(tmp_path / "bn" / "tid_batching.jsonl", [
        line | {"batching": way, "epoch": None}
        for way, own in (("as-trained", lines), ("random", lines[::-1])) for line in own
    ])  # fmt: skip
    found = [row[3:5] for row in blocks([run()])["batching"].rows if row[1] == "mean"]
    assert found == [pytest.approx((25, 0)), pytest.approx((16, 0))]


def test_sampling_error_is_of_all_measurements(make, tmp_path, blocks):
    run = make("bn", "BN", nll=(5.0,))
    errors = {0: 0.02, 1: math.nan}
    write_lines(tmp_path / "bn" / "tid.jsonl", [
        tid_line(e, 0, 0.1, 0.1, mean_tid_error=it, total_batches=(850, None)[e])
        for e, it in errors.items()
    ])  # fmt: skip
    batches, error, _ = blocks([run()])["figure4"].notes
    assert "200, 200 of 850 training batches" in batches
    assert "single layer's TID: at most 2 percentage points" in error


def test_cost(make, tmp_path, blocks):
    run = make("bn", "BN")
    lines = [
        {"update": update, "statistics": way, "nll": 4 + it, "cost": it + past}
        for update, past in ((300, 0), (100, 1))  # measured later, of an earlier checkpoint
        for way, it in WAYS.items()
    ]
    write_lines(tmp_path / "bn" / "cost.jsonl", lines)
    found = blocks([run()])
    assert {row[3]: row[5] for row in found["cost"].rows} == WAYS
    heights = [bar.get_height() for bar in found["cost"].draw().axes[0].patches]
    assert heights == [WAYS[way] for way in ("running", "recalibrated", "pooled", "batch-random")]
    summary = found["summary"]
    assert summary.rows[0][summary.columns.index("cost, bits per token")].value == WAYS["running"]


def test_statistics(make, tmp_path, blocks):
    run = make("bn", "BN", nll=(5.0,))
    write_lines(tmp_path / "bn" / "tid.jsonl", [
        tid_line(e, n, 0.1, 0.1, near_eps=0.25 * n, spread=2.0 + n, mean_lag=0.01 * (n + 1),
                 mean_drift=None if e == 0 else 0.02, mean_deviation=0.3)
        for e in (0, 1) for n in (0, 1)
    ])  # fmt: skip
    found = blocks([run()])
    assert lines_of(found["channels"], "near_eps")["bn"] == [(1, 0), (2, 25)]
    assert lines_of(found["channels"], "spread")["bn"] == [(1, 2), (2, 3)]
    assert lines_of(found["drift"], "average mean_drift")["bn"] == [(1, 2)]
    assert lines_of(found["drift"], "average mean_lag")["bn"] == [(0, 1.5), (1, 1.5)]
    deviation = lines_of(found["figure2_top"], "mean_deviation")["bn"]
    assert deviation == [(0, pytest.approx(30)), (1, pytest.approx(30))]
