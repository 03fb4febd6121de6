"""Tables: all runs, the paper's Tables 1 to 4, correlation; their forms."""

import csv
import io
import json

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from scipy import stats

from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.export import to_latex, to_markdown
from rbn_fairseq.report.paper import BENCHMARKS, published_gaps, published_results
from rbn_fairseq.report.runs import read_run
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
    assert "cost, bits per token" not in table["ln"] and table["rbn"]["BLEU"] == "31.00"


def test_summary_tells_of_trainings_that_are_not_complete(make, blocks):
    table = blocks([make("ln", nll=(5.0, 4.0))])["summary"]  # of 3 epochs
    assert any("ln (2 of 3)" in note for note in table.notes)


def test_papers_tables(main, blocks):
    made = blocks(main)
    first, second, fourth = (rows(made[f"table{number}"]) for number in (1, 2, 4))
    ours = first["Post-Norm, here"]
    assert (ours["BN - LN, BLEU"], ours["BN - LN, nll"]) == ("-1.50", "+0.500")
    assert first["Post-Norm, paper, IWSLT14"]["BN - LN, BLEU"] == "-1.5"
    assert second["Post-RBN"]["BLEU - LN's"] == "+1.00" and second["Post-RBN"]["n"] == "1"
    assert second["Post-RBN"]["paper, IWSLT14"] == "35.5"
    assert fourth["Post-BN"]["variance TID, %"] == "10.00"
    assert "table3" not in made


def test_means_over_seeds_in_tables(make, blocks):
    runs = [make(f"ln{seed}", seed=seed, nll=nll, bleu=29.0 + seed)
            for seed, nll in ((1, (5.0, 4.0)), (2, (5.0, 3.0, 2.0)))]  # fmt: skip
    table = blocks([*runs, make("brn", "renorm", nll=(5.0, 4.0))])["table2"]
    row = rows(table)["Post-LN"]
    assert row["BLEU (sacrebleu)"] == "30.50 ± 0.71" and row["valid nll"] == "3.500 ± 0.707"
    assert any("epoch 2" in note for note in table.notes)
    first = table.numbers.iloc[0]
    assert first["valid nll" + SEEDS] == 2
    assert first["valid nll" + SPREAD] == pytest.approx(0.5**0.5)


def test_other_norms_have_table_3(make, blocks):
    runs = [make("ln"), make("brn", "renorm", nll=(5.0, 4.0, 3.0)), make("rms", "rms")]
    assert list(rows(blocks(runs)["table3"])) == ["Post-BRN", "Post-rms"]


def test_significance_counts_against_layer_norms_translations(make, blocks):
    runs = [make("ln", bleu=30.0)]
    for name, against in (("bn", "runs/ln/generated.txt"), ("rbn", "other/generated.txt")):
        run = make(name, name.upper(), bleu=29.0)
        path = run.directory / "score.json"
        scores = json.loads(path.read_text())
        scores["sacrebleu"]["significance"] = {"p": 0.0123, "against": against, "samples": 9}
        path.write_text(json.dumps(scores))
        runs.append(read_run(name, run.directory))
    table = blocks(runs)["table2"]
    assert rows(table)["Post-BN"]["p"] == "0.012" and rows(table)["Post-RBN"]["p"] == ""
    assert any("other/generated.txt" in note for note in table.notes)


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


def test_correlation(make, blocks):
    runs = [make("ln", nll=(3.0,), bleu=30.0)]
    tids, nlls = (0.02, 0.08, 0.04, 0.01), (3.4, 3.5, 3.1, 2.9)
    for seed, (tid, nll) in enumerate(zip(tids, nlls, strict=True)):
        runs.append(make(f"r{seed}", "RBN", weights=(seed + 1, 0), nll=(nll,), tid=(0, tid)))
    table = blocks(runs)["correlation"].numbers.set_index("settings")
    ours = table.loc["here, valid nll"]
    assert ours["n"] == 4 and ours["Spearman"] == pytest.approx(0.8)  # 1 - 6 * 2 / 60, by hand
    assert ours["Pearson"] == pytest.approx(stats.linregress(tids, nlls).rvalue)
    assert table.loc["here, BLEU", "n"] == 0 and pd.isna(table.loc["here, BLEU", "Spearman"])
    assert table.loc["paper, all metrics", "n"] == 20
    assert pd.isna(table.loc["paper, all metrics", "Pearson"])


def test_published_numbers():
    paper = published_results()
    assert paper.at[("Post-Norm", "BN", "WMT16"), "performance"] == 25.0
    assert paper.at[("Pre-Norm", "RBN", "IWSLT14"), "var_tid"] == 1.5
    assert pd.isna(paper.at[("Pre-Norm", "LN", "IWSLT14"), "var_tid"])
    gaps = published_gaps().set_index(["placement", "dataset"])
    assert gaps.at[("Post-Norm", "IWSLT14"), "gap"] == pytest.approx(1.5)
    assert gaps.at[("Post-Norm", "PTB"), "gap"] < 0  # of perplexity less is better
    assert gaps.at[("Pre-Norm", "WMT16"), "tid"] == pytest.approx(7.9 + 30.1)
    assert {it.dataset for it in BENCHMARKS.values()} <= set(paper.index.levels[2])


HOSTILE = "a|b <i>_x_</i> & 50% #1_$x^{~}\\"


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
    assert "<em>35.5</em>" in html and "<em>30.0</em>" in html and "a note" in html


def test_latex():
    text = to_latex(hostile())
    assert r"a|b <i>\_x\_</i> \& 50\% \#1\_\$x\textasciicircum \{\textasciitilde \}" in text
    assert r"$-$1.50 $\pm$ 0.25 & \textcolor{gray}{35.5}" in text
    assert r"\caption{TID, \%}" in text and r"\begin{tabular}{lrr}" in text
    assert text.count(r"\\") == 3 and "{xcolor}" in text.splitlines()[0]


def test_csv_has_full_precision(main, tmp_path):
    from rbn_fairseq.report.content import sections
    from rbn_fairseq.report.export import write_report

    write_report(tmp_path / "out", "T", sections(main))
    with (tmp_path / "out/tables/table4.csv").open() as file:
        by_name = {row[""]: row for row in csv.DictReader(file)}
    assert float(by_name["Post-BN"]["mean TID, %"]) == pytest.approx(2.0, rel=1e-15)
