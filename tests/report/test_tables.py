"""Tables: all runs, the paper's Tables 1 to 4; their forms, and `rbn table`."""

import csv
import io
import json
import math
from dataclasses import replace

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from command import completed
from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.export import to_latex, to_markdown
from rbn_fairseq.report.runs import read_run
from rbn_fairseq.report.tables import published_results
from run_directories import tid_line, write_lines


def rows(table):
    """Texts of a table's rows by name and column."""
    return {row.pop(table.columns[0]): row for row in table.texts().to_dict("records")}


def test_summary(main, blocks):
    table = rows(blocks(main)["summary"])
    assert table["bn"]["last valid nll"] == "3.500" and table["bn"]["minutes"] == "3.0"
    assert table["bn"]["variance TID, last layer, %"] == "10.00"
    assert table["bn"]["variance TID, average, %"] == "6.25"  # of 1/4, 2/4, 3/4 and 4/4 of 10 %
    assert table["ln"]["variance TID, last layer, %"] == ""
    assert not any("cost" in column for column in table["ln"]) and table["rbn"]["BLEU"] == "31.00"


def test_a_cost_that_is_not_a_number_is_not_replaced(make, blocks):
    runs = []
    for name, costs in (
        ("both", {"recalibrated": 0.1, "running": math.nan}),
        ("one", {"batch": 0.0, "pooled": 0.3, "recalibrated": 0.2}),
    ):
        run = make(name, "BN", seed=len(runs))
        lines = [{"update": 300, "statistics": way, "nll": 4.0 + cost, "cost": cost}
                 for way, cost in costs.items()]  # fmt: skip
        write_lines(run.directory / "cost.jsonl", lines)
        runs.append(read_run(name, run.directory))
    table = rows(blocks(runs)["summary"])
    column = "cost, bits per target token"
    assert (table["both"][column], table["one"][column]) == ("", "0.2000")


def test_summary_tells_of_trainings_that_are_not_complete(make, blocks):
    table = blocks([make("ln", nll=(5.0, 4.0))])["summary"]  # of 3 epochs
    assert any("ln (2 of 3 epochs)" in note for note in table.notes)
    changes = {"optimization.max_epoch": 0, "optimization.max_update": 3408}
    run = make("ln1", nll=(5.0, 4.0), changes=changes)
    assert any("ln1 (200 of 3,408 updates)" in note for note in blocks([run])["summary"].notes)


@pytest.mark.parametrize("updates, short", [(200, False), (201, True)])  # 200 were made
def test_a_training_that_made_its_updates_is_complete(make, blocks, updates, short):
    run = make("ln", nll=(5.0, 4.0), changes={"optimization.max_update": updates})
    notes = blocks([run])["summary"].notes
    assert any("than planned" in note for note in notes) is short


def test_papers_tables(main, blocks):
    made = blocks(main)
    first, second, fourth = (rows(made[f"table{number}"]) for number in (1, 2, 4))
    ours = first["Post-BN"]
    assert (ours["BN - LN, BLEU"], ours["BN - LN, nll"]) == ("-1.50", "+0.500")
    assert first["Post-Norm, paper, IWSLT14"]["BN - LN, BLEU"] == "-1.5"
    assert second["Post-RBN"]["BLEU - LN's"] == "+1.00" and second["Post-RBN"]["n"] == "1"
    assert second["Post-RBN"]["paper, IWSLT14"] == "35.5"
    assert fourth["Post-BN"]["variance TID, %"] == "10.00"


def test_means_over_seeds_in_tables(make, blocks):
    runs = [make(f"ln{seed}", seed=seed, nll=nll, bleu=29.0 + seed)
            for seed, nll in ((1, (5.0, 4.0)), (2, (5.0, 3.0)), (3, (5.0, 2.0)))]  # fmt: skip
    table = blocks([*runs, make("brn", "renorm", nll=(5.0, 4.0))])["table2"]
    row = rows(table)["Post-LN"]
    assert row["BLEU (sacrebleu)"] == "31.00 ± 1.00" and row["valid nll"] == "3.000 ± 1.000"
    assert not any("all seeds have" in note for note in table.notes)
    first = table.numbers.iloc[0]
    assert first["valid nll" + SEEDS] == 3 and first["valid nll" + SPREAD] == pytest.approx(1)


def test_a_loss_of_an_earlier_epoch_is_told(make, blocks):
    runs = [make("ln"), make("bn1", "BN"), make("bn2", "BN", seed=2, nll=(5.0, 4.5))]
    table = blocks(runs)["table2"]
    assert rows(table)["Post-LN"]["valid nll"] == "3.500"
    (note,) = [note for note in table.notes if note.startswith("Valid nll is of epoch 3;")]
    assert note.endswith(": Post-Norm BN (2).")


def test_the_score_of_a_training_that_has_not_ended_is_in_no_mean(make, blocks):
    early = (5.0, 4.0)  # of three epochs
    runs = [make("ln1", bleu=30.0), make("ln2", seed=2, bleu=20.0, nll=early)]
    runs += [make(f"bn{seed}", "BN", seed=seed, bleu=bleu, nll=nll)
             for seed, bleu, nll in ((1, 29.0, (5.0, 4.0, 3.5)), (2, 18.0, early))]  # fmt: skip
    made = blocks(runs)
    table = rows(made["table2"])
    assert table["Post-LN"]["BLEU (sacrebleu)"] == "30.00 (n = 1)"
    assert table["Post-BN"]["BLEU - LN's"] == "-1.00 (n = 1)"
    for name in ("table1", "table2"):
        (note,) = [note for note in made[name].notes if "ended earlier" in note]
        assert note.endswith(": ln2, bn2.")
    assert rows(made["summary"])["ln2"]["BLEU"] == "20.00"
    assert not any("ended earlier" in note for note in made["table4"].notes)


def test_a_score_counts_after_as_many_updates_or_where_their_number_is_not_known(make, blocks):
    """An update more begins an epoch; a run without a log has its score alone."""
    runs = [make(f"bn{seed}", "BN", seed=seed, bleu=20.0 + seed, nll=(5.0, 4.0)) for seed in (1, 2)]
    more = runs[0].train.tail(1).assign(epoch=3, update=runs[0].train["update"].max() + 1)
    runs[0] = replace(runs[0], train=pd.concat([runs[0].train, more]))
    bare = make("bn3", "BN", seed=3, bleu=30.0)
    (bare.directory / "train.log").unlink()
    made = blocks([*runs, read_run("bn3", bare.directory)])
    assert rows(made["table2"])["Post-BN"]["BLEU (sacrebleu)"] == "24.33 ± 4.93"
    for name in ("table2", "summary"):
        assert not any("ended earlier" in note or "bn3" in note for note in made[name].notes)


def test_a_mean_of_an_earlier_epoch_than_its_longest_run_is_told(make, blocks):
    """As of a training that was broken off, by a divergence say."""
    runs = [make(f"bn{seed}", "BN", seed=seed, tid=(0.02, 0.1), nll=(5.0, 4.0, 3.5)[:length])
            for seed, length in ((1, 3), (2, 3), (3, 1))]  # fmt: skip
    for name, start in (("table2", "Valid nll is of epoch 3;"), ("table4", "TID is of epoch 3;")):
        notes = blocks(runs)[name].notes
        assert any(
            note.startswith(start) and note.endswith(": Post-Norm BN (1).") for note in notes
        )


def test_with_patience_each_training_has_its_end(make, blocks):
    patient = {"checkpoint.patience": 2}
    runs = [make(f"ln{seed}", seed=seed, bleu=bleu, nll=nll, changes=patient)
            for seed, bleu, nll in ((1, 30.0, (5.0, 4.0, 3.5)), (2, 20.0, (5.0, 4.0)))]  # fmt: skip
    table = blocks(runs)["table2"]
    assert rows(table)["Post-LN"]["BLEU (sacrebleu)"] == "25.00"
    assert not any("ended earlier" in note for note in table.notes)


def test_a_run_that_diverged_is_in_no_mean(make, blocks):
    """Its last finite loss, of an earlier epoch, does not pass for its result."""
    lost, tid = (5.0, 4.0, math.nan), {"tid": (0.01, 0.1)}
    runs = [make("ln1"), make("ln2", seed=2, nll=lost), make("rbn1", "RBN", nll=lost, **tid)]
    runs += [make(f"bn{seed}", "BN", seed=seed, nll=nll, **tid)
             for seed, nll in ((1, (5.0, 4.0, 3.0)), (2, (5.0, 4.0, 3.0)), (3, lost))]  # fmt: skip
    made = blocks(runs)
    table = rows(made["table2"])
    assert table["Post-BN"]["valid nll"] == "3.000 (n = 2)"
    assert table["Post-BN"]["nll - LN's"] == "-0.500 (n = 2)"  # both to the LN that ended
    assert table["Post-RBN"]["valid nll"] == "" and table["Post-RBN"]["n"] == "1"
    assert rows(made["table4"])["Post-RBN"]["variance TID, %"] == ""
    for name in ("table1", "table2", "table4", "summary", "differences"):
        (note,) = [note for note in made[name].notes if "not finite" in note]
        assert note.endswith(": ln2, bn3, rbn1.")


def test_two_seeds_have_no_standard_deviation(make, blocks):
    runs = [make(f"ln{seed}", seed=seed, bleu=29.0 + seed) for seed in (1, 2)]
    assert rows(blocks(runs)["table2"])["Post-LN"]["BLEU (sacrebleu)"] == "30.50"


def test_a_mean_of_fewer_seeds_says_of_how_many(make, blocks):
    runs = [make("bn1", "BN", bleu=30.0), make("bn2", "BN", seed=2)]
    assert rows(blocks(runs)["table2"])["Post-BN"]["BLEU (sacrebleu)"] == "30.00 (n = 1)"
    runs = [make("ln1", bleu=30.0), make("ln2", seed=2), make("bn3", "BN", bleu=29.0),
            make("bn4", "BN", seed=2, bleu=29.0)]  # fmt: skip
    tables = blocks(runs)
    assert rows(tables["table2"])["Post-BN"]["BLEU - LN's"] == "-1.00 (n = 1)"
    assert rows(tables["table2"])["Post-BN"]["nll - LN's"] == "+0.000"
    assert rows(tables["table1"])["Post-BN"]["BN - LN, BLEU"] == "-1.00 (n = 1)"


def test_other_norms_stand_below_the_main_ones(make, blocks):
    runs = [make("ln"), make("brn", "renorm", nll=(5.0, 4.0, 3.0)), make("rms", "rms")]
    names = ["Post-LN", "Post-BN", "Post-RBN", "Post-BRN", "Post-RMSNorm"]
    assert list(rows(blocks(runs)["table2"])) == names


def test_runs_of_other_placements_are_named(make, blocks):
    deep, sub = (make(name, changes={"model.norm_placement": name}) for name in ("deepnorm", "sub"))
    made = blocks([make("ln"), deep, sub])
    for number in (1, 2, 4):
        notes = made[f"table{number}"].notes
        assert any(
            "neither Post-Norm" in note and note.endswith(": deepnorm, sub.") for note in notes
        )
    assert not {"table1", "table2", "table4"} & set(blocks([deep, sub]))
    assert not any("neither Post-Norm" in note for note in blocks([make("ln2")])["table2"].notes)


def test_scores_of_an_evaluation(make):
    """What `rbn evaluate` leaves in a run is what `rbn table` prints."""
    for name, seed, bleu, without in (
        ("ln", 1, 30.0, None),
        ("bn1", 1, 31, 29),
        ("bn2", 2, 33, 32),
    ):
        run = make(name, name[:2].upper(), seed=seed)
        for file, score in (("score", bleu), ("score_averaged_statistics", without)):
            if score is not None:
                kinds = {"tokenised": score, "sacrebleu": score - 1}
                text = {kind: {"bleu": it, "signature": "none"} for kind, it in kinds.items()}
                (run.directory / f"{file}.json").write_text(json.dumps(text))
    result = completed("table", *(run.directory.with_name(name) for name in ("ln", "bn1", "bn2")))
    _, _, second, fourth = result.output.split("Paper's Table")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in second.splitlines() if line.startswith("|")]  # fmt: skip
    row = dict(zip(cells[0], cells[3], strict=True))
    assert row[""] == "Post-BN" and row["n"] == "2" and row["paper, IWSLT14"] == "34.0"
    assert row["BLEU (tokenised)"] == "32.00" and row["BLEU - LN's"] == "+2.00"
    assert row["without recalibration"] == "30.50"
    assert "TID of the last layer" in fourth
    assert result.output.count("Mean over seeds") == 1, "notes once for all tables"


def test_without_a_placement_of_the_papers_there_is_no_table(make):
    run = make("sub", changes={"model.norm_placement": "sub"})
    output = completed("table", run.directory).stdout
    assert "No table: the paper's runs are Post-Norm or Pre-Norm" in output and "|" not in output


def test_a_score_on_another_test_set_is_left_out(make, blocks):
    sentences = {"bn1": 6750, "bn2": 7283, "bn3": 6750, "ln": None}
    runs = []
    for seed, (name, number) in enumerate(sentences.items()):
        path = make(name, name[:2].upper(), seed=seed, bleu=30.0 + seed).directory / "score.json"
        score = json.loads(path.read_text())
        score["sacrebleu"]["sentences"] = number
        path.write_text(json.dumps(score))
        runs.append(read_run(name, path.parent))
    made = blocks(runs)
    assert rows(made["table2"])["Post-BN"]["BLEU (sacrebleu)"] == "31.00 (n = 2)"
    note = "Left out, as scored on another number of sentences: bn2."
    assert note in made["summary"].notes and note in made["table2"].notes


def test_given_length(main, blocks):
    assert not any("given length" in column for column in blocks(main)["table4"].columns)
    lines = [
        tid_line(epoch, n, 0.01, 0.02, mean_conditional_tid=0.004, var_conditional_tid=0.008)
        for epoch in range(4) for n in (0, 1)
    ]  # fmt: skip
    bn = main[1]
    write_lines(bn.directory / "tid.jsonl", lines)
    made = blocks([main[0], read_run("bn", bn.directory)])
    assert rows(made["table4"])["Post-BN"]["mean TID given length, %"] == "0.40"
    summary = rows(made["summary"])["bn"]
    assert summary["variance TID given length, average, %"] == "0.80"


def test_published_numbers():
    paper = published_results()
    assert paper.at[("Post-Norm", "BN", "WMT16"), "score"] == 25.0
    assert paper.at[("Pre-Norm", "RBN", "IWSLT14"), "var_tid"] == 1.5
    assert pd.isna(paper.at[("Pre-Norm", "LN", "IWSLT14"), "var_tid"])


HOSTILE = "a|b <i>_x_</i> & 50% #1_$x^{~}\\ --lr"


def hostile():
    frame = pd.DataFrame(
        {"": [HOSTILE, "paper"], "BLEU": [-1.5, 30.0], "BLEU" + SPREAD: [0.25, None],
         "BLEU" + SEEDS: [3, None], "paper, IWSLT14": [35.5, None]}
    )  # fmt: skip
    return Table(
        "t", "TID, %", frame, {"BLEU": 2}, (), ("a note",), ("#000000", ""), frozenset({1})
    )


def test_markdown_is_read_as_it_was_meant():
    """By another implementation of Markdown."""
    text = to_markdown(hostile())
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    (cells,) = pd.read_html(io.StringIO(html), keep_default_na=False)
    assert cells.iloc[0].tolist() == [HOSTILE, "-1.50 ± 0.25", "35.5"]
    assert "a note" in html


def test_latex():
    text = to_latex(hostile())
    assert r"a\textbar{}b \textless{}i\textgreater{}\_x\_\textless{}/i\textgreater{} \& 50" in text
    assert r"50\% \#1\_\$x\textasciicircum \{\textasciitilde \}" in text and " -{}-lr" in text
    assert r"$-$1.50 $\pm$ 0.25 & 35.5" in text
    assert r"\caption{TID, \%}" in text and r"\begin{tabular}{lrr}" in text
    assert text.count(r"\\") == 3 and "{booktabs}" in text.splitlines()[0]


def test_there_is_no_negative_zero():
    frame = pd.DataFrame({"": ["a"], "nll": [-1e-9], "gap": [-1e-9], "n": [-0.0]})
    table = Table("t", "T", frame, {"nll": 3, "gap": 3}, ("gap",))
    assert table.texts().iloc[0].tolist() == ["a", "0.000", "+0.000", "0"]


def test_csv_has_full_precision(main, tmp_path):
    from rbn_fairseq.report.content import sections
    from rbn_fairseq.report.export import write_report

    write_report(tmp_path / "out", "T", sections(main))
    with (tmp_path / "out/tables/table4.csv").open() as file:
        by_name = {row[""]: row for row in csv.DictReader(file)}
    assert float(by_name["Post-BN"]["mean TID, %"]) == pytest.approx(2.0, rel=1e-15)


def test_validations_are_not_the_last_epoch(make, blocks):
    """With --validate-interval 2: three epochs are made, and two validated."""
    run = make("ln")
    log = run.directory / "train.log"
    rows = log.read_text().splitlines(keepends=True)
    log.write_text("".join(row for row in rows if "valid | epoch 003" not in row))
    table = blocks([read_run("ln", run.directory)])["summary"]
    assert table.texts()["epochs"].tolist() == ["3"]
    assert not any("than planned" in note for note in table.notes)


def test_long_seeds_are_told_apart(make, blocks):
    runs = [make(f"ln{seed}", seed=seed) for seed in (20240101, 20240102)]
    assert blocks(runs)["summary"].texts()["seed"].tolist() == ["20240101", "20240102"]
