"""The report's sections and tables: every cell against the runs that were written."""

import csv
import io
import math
from dataclasses import replace

import pytest
from run_directories import configuration, write_lines, write_run

from rbn_fairseq.report import content
from rbn_fairseq.report.blocks import Figure, Table
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import to_csv
from rbn_fairseq.report.figures import training
from rbn_fairseq.report.figures.style import norm_colours
from rbn_fairseq.report.runs import read_run


def rows(table):
    """Texts by a row's first cell."""
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_summary(main, blocks):
    table = blocks(main)["summary"]
    found = [dict(zip(table.columns, (c.text for c in row), strict=True)) for row in table.rows]
    assert [row["run"] for row in found] == ["ln", "bn", "rbn"]
    bn = found[1]
    assert (bn["placement"], bn["norm"], bn["seed"], bn["epochs"]) == ("Post-Norm", "BN", "1", "3")
    assert (bn["best valid nll"], bn["last valid nll"], bn["BLEU"]) == ("3.500", "3.500", "28.50")
    assert bn["variance TID, last layer, %"] == "10.00" and bn["mean TID, last layer, %"] == "2.00"
    assert bn["variance TID, average, %"] == "6.25"  # 10 * (1 + 2 + 3 + 4) / 16
    assert found[0]["variance TID, last layer, %"] == "" and bn["minutes"] == "3.0"
    assert "cost, bits per token" not in table.columns  # nobody measured it
    assert table.rows[1][0].colour == norm_colours(["BN"])["BN"]


def multiplier_line(epoch, layer, mean, std, **more):
    return {
        "epoch": epoch, "update": 100 * epoch, "layer": layer, "mean_multiplier": mean,
        "std_multiplier": std, "mean_gap": 0.02 / epoch, "std_gap": 0.03, **more,
    }  # fmt: skip


def test_multipliers(make, tmp_path, blocks, main):
    assert "multipliers" not in blocks(main)  # nobody has any, and nothing need be told of it
    held = make("auto", "BN", changes={"criterion.rbn_target_tid": "1:2.5"})
    lines = [
        multiplier_line(1, "first", 0.25, 0.0),
        multiplier_line(1, "second", 0.5, 0.75, mean_gap=None),
        multiplier_line(2, "first", 0.125, 0.0),
        multiplier_line(2, "second", 1.0, 0.75),
    ]
    write_lines(tmp_path / "auto" / "multipliers.jsonl", lines)
    write_lines(tmp_path / "ln" / "multipliers.jsonl", lines)  # of no target
    stray = read_run("ln", tmp_path / "ln")
    figure = blocks([stray, *main[1:], held()])["multipliers"]
    assert figure.notes == ()
    assert figure.rows == (
        ("auto", 1, "first", 0.25, 0.0, 0.02, 0.03),
        ("auto", 1, "second", 0.5, 0.75, None, 0.03),
        ("auto", 2, "first", 0.125, 0.0, 0.01, 0.03),
        ("auto", 2, "second", 1.0, 0.75, 0.01, 0.03),
    )
    mean, std, gap, spread, _ = figure.draw().axes  # the last is the scale of colours
    first, second = ([list(xy) for xy in line.get_xydata()] for line in mean.lines)
    assert (first, second) == ([[1, 0.25], [2, 0.125]], [[1, 0.5], [2, 1.0]])
    assert [list(line.get_ydata()) for line in std.lines] == [[0, 0], [0.75, 0.75]]
    assert [list(line.get_ydata()) for line in gap.lines] == [[2, 1], [1], [1, 1]]  # and target
    assert list(spread.lines[-1].get_ydata()) == [2.5, 2.5]


def test_multipliers_of_many_runs(make, tmp_path, blocks):
    runs = []
    for number, norms in enumerate((2, 1, 1, 1, 1), 1):
        changes = {"criterion.rbn_target_tid": f"{number}:1"}
        run = make(f"auto{number}", "BN", changes=changes)
        lines = [multiplier_line(1, f"norm{n}", number, 0.0) for n in range(norms)]
        write_lines(tmp_path / f"auto{number}" / "multipliers.jsonl", lines)
        runs.append(run())
    figure = blocks(runs)["multipliers"]
    assert [row[0] for row in figure.rows] == ["auto1", *(f"auto{n}" for n in range(1, 6))]
    assert figure.notes == ("Drawn: the first 4 of 5 runs; CSV has all.",)
    *panels, scale = figure.draw().axes
    assert [text.get_text() for text in scale.get_yticklabels()] == ["input", "output"]
    rows = [panels[at : at + 4] for at in range(0, 16, 4)]
    for column in zip(*rows, strict=True):
        assert len({axes.get_ylim() for axes in column}) == 1
    first, last = (line.get_color() for line in rows[0][0].lines)
    assert not (first == last).all()
    assert all((row[0].lines[0].get_color() == first).all() for row in rows)


def test_a_target_is_a_norm_of_its_own(make, main, blocks):
    """Runs of older versions do not know the option: only their name keeps targets apart."""
    held = [
        make(f"auto{n}", "BN", changes={"criterion.rbn_target_tid": target})()
        for n, target in enumerate(("1:1", "2:2"))
    ]
    part = make("part", "batch@0-0:layer", changes={"criterion.rbn_target_tid": "1:1"})()
    table = blocks([*main, *held, part])["summary"]
    column = table.columns.index("norm")
    assert [row[column].text for row in table.rows] == [
        "LN", "BN", "RBN", "auto-RBN (target TID, % 1:1)", "auto-RBN (target TID, % 2:2)",
        "auto-RBN@0-0",
    ]  # fmt: skip


def test_a_run_that_goes_on(tmp_path, blocks):
    directory = write_run(tmp_path / "x", configuration(**{"optimization.max_epoch": 60}))
    log = (directory / "train.log").read_text().splitlines()[:-1]  # without its last line
    (directory / "train.log").write_text("\n".join(log) + "\n")
    table = blocks([read_run("x", directory)])["summary"]
    cell = table.rows[0][table.columns.index("epochs")]
    assert cell.text == "3 of 60" and "does not say" in cell.note


def test_table_1(main, blocks):
    found = rows(blocks(main)["table1"])
    expected = ["30.00", "28.50", "-1.50", "+0.500", "2.00", "10.00", "1"]
    assert found["Post-Norm, here"] == expected
    paper = ["35.5", "34.0", "-1.5", "", "1.5", "10.6", ""]
    assert found["Post-Norm, paper, IWSLT14"] == paper
    for row in blocks(main)["table1"].rows:
        assert all(cell.paper or not cell.text for cell in row) == ("paper" in row[0].text)


def test_table_2_and_4(main, blocks):
    found = blocks(main)
    assert rows(found["table2"])["Post-RBN"] == [
        "31.00", "1", "+1.00", "", "2.750", "-0.250", "35.5",
    ]  # fmt: skip
    assert rows(found["table4"])["Post-BN"] == ["2.00", "10.00", "1", "1.5", "10.6"]
    assert rows(found["table4"])["Post-RBN"] == ["1.00", "4.00", "1", "0.8", "6.7"]
    assert "table3" not in found  # no other norm is there


def test_means_stand_with_deviation(make, blocks):
    runs = [make(f"b{n}", "BN", seed=n, bleu=it)() for n, it in ((1, 30.0), (2, 31.0), (3, 32.0))]
    table = blocks(runs)["table2"]
    row = next(row for row in table.rows if row[0].text == "Post-BN")
    assert (row[1].text, row[1].value, row[2].text) == ("31.00 ± 1.00", 31.0, "3")


def test_wmt_has_its_numbers(make, blocks):
    runs = [make("bn", "BN", changes={"task.data": "data/wmt16"}, bleu=24.0)()]
    other = {"bleu": 25.0, "signature": "x"}
    runs[0].scores.update(tokenised=other | {"bleu": 23.0}, compound_split=other)
    table = blocks(runs)["table2"]
    assert table.columns[-2:] == ("paper, IWSLT14", "paper, WMT16")
    assert rows(table)["Post-BN"][-2:] == ["34.0", "25.0"]
    assert next(r for r in table.rows if r[0].text == "Post-BN")[1].text == "25.00"


def test_other_norms(make, blocks):
    table = blocks([make("pn", "power")(), make("x", "rms", "Pre-Norm")()])["table3"]
    assert rows(table)["Post-PN-only"][-1] == "0.0" and rows(table)["Pre-PN-only"][-1] == "34.5"
    assert rows(table)["Pre-rms"][-1] == ""
    assert "--norm-encoder rms" in next(r for r in table.rows if r[0].text == "Post-rms")[1].note


def test_gaps_name_their_commands(make, blocks):
    own = {"task.data": "data/iwslt14/bin"}
    named = {"model._name": "rbn_transformer_iwslt_de_en"}
    layers = {f"model.{side}_layers": 6 for side in ("encoder", "decoder")}
    run = make("bn", "BN", changes=own | named | layers, tid=(0.1, 0.1))()
    cells = {row[0].text: row for row in blocks([run])["table2"].rows}
    layer = cells["Post-LN"][1]
    assert layer.text == "" and layer.value is None
    assert "bash scripts/iwslt14/train.sh ln post 1 2 3 &&" in layer.note
    assert "rbn score" in cells["Post-BN"][1].note
    for name, changes in (("a", own | named), ("b", named | layers)):  # another model, other data
        note = blocks([make(name, "BN", changes=changes)()])["table2"].rows[0][1].note
        assert "scripts" not in note and "`rbn train data/iwslt14" in note
    runs = [make("other", "BN", "Pre-Norm", changes={"task.data": "my data"})()]
    note = next(r for r in blocks(runs)["table2"].rows if r[0].text == "Pre-RBN")[1].note
    assert note.startswith("`rbn train 'my data' --save-dir DIR") and "as in other" in note
    assert "--rbn-mean-weight 0.1" in note and "--encoder-normalize-before" in note


def test_significance(main, blocks):
    test = {"against": "runs/ln/generate.txt", "p": 0.0125, "samples": 1000}
    main[1].scores["sacrebleu"]["significance"] = test
    cells = {row[0].text: row[4] for row in blocks(main)["table2"].rows}
    assert cells["Post-BN"].text == f"{0.0125:.3f}"
    assert cells["Post-BN"].value == 0.0125 and "1000 samples" in cells["Post-BN"].note
    note = cells["Post-RBN"].note
    assert "--against" in note and cells["Post-LN"].note == ""
    test["against"] = "runs/old-ln/generate.txt"
    cells = {row[0].text: row[4] for row in blocks(main)["table2"].rows}
    assert cells["Post-BN"].text == "" and "runs/old-ln/generate.txt" in cells["Post-BN"].note


def test_seeds_are_compared_at_one_epoch(make, blocks):
    runs = [
        make("l1", seed=1, nll=(5.0, 4.0, 3.0))(),
        make("b1", "BN", seed=1, nll=(5.0, 4.5, 3.5), tid=(0.1, 0.1))(),
        make("b2", "BN", seed=2, nll=(5.0, 5.5), tid=(0.3, 0.1))(),
    ]
    b1 = runs[1]
    last = b1.tid[-1]
    halves = tuple(replace(layer, mean_tid=layer.mean_tid / 2) for layer in last.layers)
    runs[1] = replace(b1, tid=(*b1.tid[:-1], replace(last, layers=halves)))
    found = blocks(runs)
    row = next(row for row in found["table2"].rows if row[0].text == "Post-BN")
    assert (row[2].text, row[5].value) == ("2", 5.0)  # (4.5 + 5.5) / 2
    assert row[5].note == "at epoch 2, the last that all seeds have"
    assert row[6].text == "+1.000" and row[6].note.startswith("at epoch 2, the last that all")
    row = next(row for row in found["table4"].rows if row[0].text == "Post-BN")
    assert row[1].value == pytest.approx(20) and "at epoch 2" in row[1].note
    alike = blocks(runs[:2])["table2"]
    assert [row[6].note for row in alike.rows if row[0].text == "Post-BN"] == [""]


def test_other_signatures_are_told(main, blocks):
    main[1].scores["sacrebleu"]["signature"] = "another"
    cells = {row[0].text: row[3] for row in blocks(main)["table2"].rows}
    assert cells["Post-BN"].text == "" and "signatures" in cells["Post-BN"].note
    assert cells["Post-RBN"].text == "+1.00"


def test_numbers_of_several_seeds_stand_in_csv(make, blocks):
    runs = [make(f"ln{seed}", seed=seed, bleu=30.0)() for seed in (1, 2)]
    runs += [make(f"bn{seed}", "BN", seed=seed, bleu=28.0 + seed)() for seed in (1, 2)]
    for run in runs[2:]:
        against = f"runs/ln{run.name[-1]}/generated.txt"
        run.scores["sacrebleu"]["significance"] = {"against": against, "p": 0.0125, "samples": 9}
    lines = csv.DictReader(io.StringIO(to_csv(blocks(runs)["table2"])))
    (line,) = (it for it in lines if it[""] == "Post-BN")
    assert line["p"] == f"{0.0125:.3f}, {0.0125:.3f}"
    bleu = [line[f"BLEU (sacrebleu){name}"] for name in ("", ", standard deviation", ", seeds")]
    assert [float(it) for it in bleu] == [29.5, pytest.approx(math.sqrt(0.5)), 2]


def test_a_dollar_sign_in_a_name(make, blocks):
    name = r"a$\frac$b"  # no formula: matplotlib would refuse it
    figure = blocks([make(name, "BN", tid=(0.02, 0.1))()])["figure2_map"]
    canvas = figure.draw()
    assert name in canvas.axes[0].get_title(loc="left")
    canvas.draw_without_rendering()
    runs = [make("ln", train={"gnorm": 1.0})(), make("bn", "BN", train={"gnorm": 1e6})()]
    canvas = blocks(runs)["gradients"].draw()  # its axis has powers of ten, which are formulas
    canvas.draw_without_rendering()
    labels = [label for axes in canvas.axes for label in axes.get_yticklabels()]
    formulas = [label for label in labels if "mathdefault" in label.get_text()]
    assert formulas and all(label.get_parse_math() for label in formulas)


def test_nothing_measured(make):
    (found,) = (it for it in sections([make("ln")()]) if it.title == "Not measured")
    commands = {row[0].text: row[2].text for row in found.blocks[0].rows}
    for command in commands.values():  # what only prints its result fills nothing
        assert "rbn tid" not in command or "--json" in command
    for title, command in (
        ("Figure 4: average TID", "rbn tid"),
        ("Discrepancy cost", "rbn cost"),
        ("Where TID comes from", "--tid-batching random"),
        ("Figure 7: C_max", "--conditioning-interval"),
        ("Figure 3, left", "batch@0-1:layer"),
        ("Figure 5", "reproduction.md"),
    ):
        (own,) = (text for name, text in commands.items() if name.startswith(title))
        assert command in own
    assert not any(name.startswith("Figure 1") for name in commands)


def test_best_loss_is_a_number(make, blocks):
    table = blocks([make("ln", nll=(math.nan, 4.0, math.nan))()])["summary"]
    assert table.rows[0][table.columns.index("best valid nll")].text == "4.000"


def test_correlation(make, blocks):
    runs = [make("ln", nll=(5.0, 4.0), bleu=30.0)()]
    for n, weight in enumerate((0.1, 0.2, 0.3, 0.4)):
        nll, tid = (5.0, 4.0 + 0.1 * n), (0.01, 0.01 * (n + 1))
        runs.append(make(f"r{n}", "RBN", weights=(weight, 0), nll=nll, bleu=30 - n**2, tid=tid)())
    table = rows(blocks(runs)["correlation"])
    assert table["here, BLEU"][:2] == ["4", "+1.00"] and table["here, BLEU"][3] == "+0.96"
    assert table["here, valid nll"][3] == "+1.00"
    assert table["paper, all metrics"][0] == "20" and table["paper, all metrics"][3] == ""
    assert table["paper, accuracy"][0] == "8"


def test_groups_are_apart(make, blocks):
    runs = [make("a", "BN")(), make("b", "BN", changes={"task.data": "other"})()]
    titles = [section.title for section in sections(runs)]
    assert titles[0].startswith("Group 1: iwslt14;") and "Training (group 2)" in titles
    found = blocks(runs)
    assert [row[0].text for row in found["summary"].rows] == ["a"]
    assert [row[0].text for row in found["summary_2"].rows] == ["b"]


def test_a_figure_that_fails_ends_no_report(main, blocks, monkeypatch):
    def fails(*args):
        """Figure 9: what cannot be."""
        raise RuntimeError("out of $x_1$")

    drawn = Figure("bad", "Figure 8", "", fails, ("x",), ())
    theme = replace(content._THEMES[0], figures=(fails, lambda *args: drawn, training.losses))
    monkeypatch.setattr(content, "_THEMES", (theme,))
    monkeypatch.setattr(content, "scatter", fails)
    found = blocks(main)
    assert found["figure1"].draw().axes and "correlation" in found
    told = [[cell.text for cell in row] for row in found["problems"].rows]
    assert [title for title, _ in told] == 2 * ["Figure 9: what cannot be."]
    assert all("out of $x_1$" in problem for _, problem in told)
    canvas = found["bad"].draw()
    canvas.draw_without_rendering()
    assert "could not be drawn" in canvas.axes[0].texts[0].get_text()


def test_a_configuration_that_cannot_be_read(make, blocks):
    found = blocks([make("x", changes={"criterion.rbn_mean_weight": "much"})(), make("ln")()])
    assert [row[0].text for row in found["problems"].rows] == ["x"]
    assert "settings are unknown" in found["problems"].rows[0][1].text
    assert [row[0].text for row in found["summary_2"].rows] == ["ln"]


def test_settings_that_are_not_finite_are_counted_apart(make, blocks):
    runs = [make("ln", nll=(5.0,))()]
    for n in range(3):
        nll = math.nan if n == 1 else 4.0 + n
        runs.append(make(f"r{n}", "RBN", weights=(n, 1), nll=(nll,), tid=(0.1, 0.1))())
    (row,) = (r for r in blocks(runs)["correlation"].rows if r[0].text == "here, valid nll")
    assert row[1].text == "2" and row[1].note.startswith("1 more")


def test_problems(make, tmp_path):
    (tmp_path / "empty").mkdir()
    found = sections([make("ln")(), read_run("empty", tmp_path / "empty")])
    (problems,) = (it for it in found if it.title == "Problems")
    assert [row[0].text for row in problems.blocks[0].rows] == ["empty"]
    assert isinstance(problems.blocks[0], Table)
    assert "figure1" in {block.name for it in found for block in it.blocks}
