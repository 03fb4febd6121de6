"""The runs under results/: real ones, whose numbers the documents quote."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.runs import read_runs

RESULTS = Path(__file__).parents[2] / "results"
RUNS = sorted(RESULTS.glob("*/runs/*"))


@pytest.fixture(scope="module")
def found():
    return read_runs((f"{path.parts[-3]}/{path.name}", path) for path in RUNS)


def test_they_are_read_without_problems(found):
    assert len(found) >= 6
    assert {run.name: run.problems for run in found if run.problems} == {}
    assert all(run.settings and run.validations for run in found)


def test_nothing_in_them_names_a_machine():
    for path in RESULTS.rglob("runs/*/*"):
        absolute = re.findall(r"['\"](/\w[^'\"]*)", path.read_text())
        assert set(absolute) <= {"/tmp/plasma"}, path  # a default of fairseq's


def test_the_papers_figures_are_drawn_of_them(found):
    names = {it.name for part in sections(found) for it in part.blocks if isinstance(it, Figure)}
    for figure in ("figure1", "figure2_top", "figure2_map", "figure3_right", "figure4", "cost"):
        assert figure in names, figure
    assert any(name.startswith("figure6") for name in names)
    assert any(name.startswith("figure7") for name in names)


def test_numbers_of_the_readme(found):
    by_name = {
        run.name.partition("/")[2]: run for run in found if run.name.startswith("iwslt14_subset/")
    }
    text = (RESULTS / "iwslt14_subset" / "README.md").read_text()
    for name in ("ln", "bn", "rbn_official", "rbn_paper"):
        run = by_name[name]
        assert f"{run.validations[-1].nll_loss:.3f}" in text
        assert f"{run.scores['tokenised']['bleu']:.2f}" in text
    bn = by_name["bn"]
    for point in bn.batching:
        if point.batching == "permuted":  # of an older version's `rbn tid`
            continue
        last, average = point.last, point.average
        for it in (last, average):
            assert f"{100 * it.mean_tid:.2f} / {100 * it.var_tid:.2f}" in text, point.batching
    for cost in bn.cost:
        if cost.statistics != "pooled":
            assert f"{cost.nll:.4f}" in text


def test_numbers_by_length(found):
    (bn,) = (run for run in found if run.name == "length_bins/bn")
    text = (RESULTS / "length_bins" / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| BN, ") or "**BN, 16" in line]
    assert len(bn.cost) == 5 * 6 and len(rows) == 8
    for cost in bn.cost:
        assert any(f" {cost.nll:.3f} " in row for row in rows[:6]), (cost.statistics, cost.nll)


def test_numbers_of_three_seeds(found):
    text = (RESULTS / "ladder" / "README.md").read_text()
    runs = {
        norm: [run for run in found if run.name.startswith(f"ladder/{norm}-seed")]
        for norm in ("ln", "bn", "rbn")
    }
    assert {len(seeds) for seeds in runs.values()} == {3}
    columns = []
    for norm in ("ln", "rbn"):
        rows = [[it.nll_loss for it in run.validations] for run in runs[norm]]
        columns += zip(*rows, strict=True)
    for way in {it.statistics for it in runs["bn"][0].cost}:
        own = [[it.nll for it in run.cost if it.statistics == way] for run in runs["bn"]]
        columns += zip(*own, strict=True)
    assert len(columns) == 4 * (2 + 7)
    for column in columns:
        assert f"{fmean(column):.3f} ± {stdev(column):.3f}" in text, column
    for norm in runs:
        scores = [run.scores["tokenised"]["bleu"] for run in runs[norm]]
        assert f"{fmean(scores):.2f} ± {stdev(scores):.2f}" in text, norm
    for name in ("bn-seed?/global", "bn-seed?/pooled", "bn-seed?/bins16", "rbn-seed?/bins16"):
        files = sorted((RESULTS / "ladder" / "runs").glob(f"{name}.json"))
        scores = [json.loads(file.read_text())["tokenised"]["bleu"] for file in files]
        assert len(scores) == 3
        assert f"{fmean(scores):.2f} ± {stdev(scores):.2f}" in text, name
    for run in (run for run in runs["bn"] if run.batching):
        for point in run.batching:
            assert f"{100 * point.average.mean_tid:.2f} / {100 * point.average.var_tid:.2f}" in text


def test_numbers_of_longer_trainings(found):
    text = (RESULTS / "longer" / "README.md").read_text()
    runs = {run.name[len("longer/long-") :]: run for run in found if run.name.startswith("longer/")}
    assert set(runs) == {"bn-seed1", "bn-seed2", "ln-seed1", "ln-seed2", "rbn-seed1"}
    for run in runs.values():
        assert len(run.validations) == 8
        assert f"{run.scores['tokenised']['bleu']:.2f}" in text
    validated = [it for name in runs if name[0] in "lr" for it in runs[name].validations[3:]]
    costs = [it for name in runs if name[0] == "b" for it in runs[name].cost if it.update > 3000]
    assert (len(validated), len(costs)) == (3 * 5, 2 * 5 * 7)
    for nll in [it.nll_loss for it in validated] + [it.nll for it in costs]:
        assert re.search(rf"[ (]{nll:.3f}[,) ]", text), nll
    for seed in (1, 2):
        path = RESULTS / "longer" / "runs" / f"long-bn-seed{seed}" / "global.json"
        assert f"{json.loads(path.read_text())['tokenised']['bleu']:.2f}" in text
        averages = path.with_name("average.jsonl").read_text().splitlines()
        assert len(averages) == 7
        for nll in [json.loads(line)["nll"] for line in averages]:
            assert re.search(rf"[ (]{nll:.3f}[,) ]", text), nll


def test_numbers_of_wider_models_and_of_rbn_with_bins(found):
    for name, number in (("wider", 2 * 7), ("rbn_bins", 7)):
        text = (RESULTS / name / "README.md").read_text()
        (run,) = (run for run in found if run.name.startswith(f"{name}/"))
        assert len(run.cost) == number
        assert all(f" {it.nll:.3f} |" in text for it in run.cost)


@pytest.mark.parametrize("name, number", [("target", 8), ("hybrids", 5)])
def test_numbers_of_targets_and_hybrids(found, name, number):
    text = (RESULTS / name / "README.md").read_text()
    runs = [run for run in found if run.name.startswith(f"{name}/")]
    assert len(runs) == number
    for run in runs:
        assert " | ".join(f"{it.nll_loss:.3f}" for it in run.validations) in text, run.name
        average = run.tid[-1].average
        assert f"{100 * average.mean_tid:.2f} / {100 * average.var_tid:.2f} |" in text, run.name
        if run.scores:
            assert f"{run.scores['tokenised']['bleu']:.2f}" in text, run.name
        for it in run.cost:
            assert f" {it.nll:.3f} " in text, run.name


def test_numbers_of_mixed_lengths_and_pre_norm(found):
    text = (RESULTS / "pre_norm" / "README.md").read_text()
    (run,) = (run for run in found if run.name.startswith("pre_norm/"))
    assert len(run.cost) == 7
    assert all(f"{it.nll:.3f} |" in text for it in run.cost)
    text = (RESULTS / "mixing" / "README.md").read_text()
    mixed = [run for run in found if run.name.startswith("mixing/")]
    assert len(mixed) == 3
    for run in mixed:
        assert " / ".join(f"{it.nll_loss:.3f}" for it in run.validations) in text
    for run in mixed[:2]:
        kept = RESULTS / "mixing" / "runs" / run.name[len("mixing/") :] / "global.jsonl"
        global_nll = [json.loads(line)["nll"] for line in kept.read_text().splitlines()]
        assert " / ".join(f"{nll:.3f}" for nll in global_nll) in text
        average = run.tid[-1].average
        assert f"{100 * average.mean_tid:.2f} / {100 * average.var_tid:.2f} |" in text
