"""The report on tasks that are not translation: their scores, sizes, and the paper's columns."""

import json

import pytest

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.groups import group_runs
from rbn_fairseq.report.means import last_gaps
from rbn_fairseq.report.runs import read_run
from rbn_fairseq.report.setups import describe, metric_of
from rbn_fairseq.report.tables import paper_tables
from run_directories import configuration, write_run


def language_model(plan, weight=0.0):
    cfg = configuration(data="data/ptb/bin")
    cfg["task"]["_name"] = "language_modeling_rbn"
    cfg["model"] = {"_name": "rbn_transformer_lm_ptb", "norm_decoder": plan}
    cfg["criterion"]["rbn_mean_weight"] = weight
    return cfg


@pytest.fixture
def language_models(tmp_path):
    """Layer norm and RBN of a language model, with perplexities of 50 and 45."""
    runs = []
    for name, plan, weight, perplexity in (("ln", "layer", 0.0, 50.0), ("rbn", "batch", 0.1, 45.0)):
        cfg = language_model(plan, weight)
        write_run(tmp_path / name, cfg, tid=(0.009, 0.011) if weight else None)
        score = {"test": {"ppl": perplexity, "loss": 5.5}}
        (tmp_path / name / "score.json").write_text(json.dumps(score))
        runs.append(read_run(name, tmp_path / name))
    return runs


def test_language_models(language_models):
    layer, rbn = map(describe, language_models)
    assert (layer.norm, rbn.norm, rbn.placement) == ("LN", "RBN", "Post-Norm")
    assert rbn.size == "3 layers, width 256, feed-forward 2100, 1 heads"
    (group,) = group_runs(language_models)
    assert group.scored == "PPL"
    assert last_gaps(group)["score"].tolist() == [-5.0]  # RBN is better
    first, second, fourth = (table.texts() for table in paper_tables(group, {}))
    assert first["LN, PPL"].tolist()[-1] == "53.2" and first["BN - LN, PPL"].tolist()[-1] == "-7.3"
    row = second.iloc[2]
    assert (row["PPL"], row["PPL - LN's"], row["paper, PTB"]) == ("45.00", "-5.00", "44.6")
    assert fourth["paper, PTB, var., %"].tolist() == ["1.1", "1.1"]
    pages = [block for section in sections(language_models) for block in section.blocks]
    assert any("PPL" in getattr(block, "numbers", "") for block in pages)
    told = " ".join(map(repr, pages))
    assert "bits per token" in told and "target token" not in told  # as in translation


def test_bottom_layers_of_a_language_model(tmp_path, blocks):
    plans = {"ln": "layer", "part": "batch@0-1:layer", "bn": "batch"}
    runs = []
    for number, (name, plan) in enumerate(plans.items()):
        tid = (0.01, 0.02 * number) if number else None
        write_run(tmp_path / name, language_model(plan), nll=(5.0, 4.0 + number), tid=tid)
        runs.append(read_run(name, tmp_path / name))
    left = blocks(runs)["figure3_left"].numbers
    assert left["L"].tolist() == [0, 2, 3] and left["nll_gap"].tolist() == [0, 1, 2]
    assert left["var_tid_percent"].tolist() == pytest.approx([0, 2, 4])


@pytest.mark.parametrize(
    "task, data, name, unit, shown, lower",
    [
        ("translation_rbn", "data/iwslt14", "BLEU", "target token", ["IWSLT14"], False),
        ("translation_rbn", "mine", "BLEU", "target token", ["IWSLT14"], False),
        ("translation_rbn", "data/wmt16/bin", "BLEU", "target token", ["WMT16"], False),
        ("language_modeling_rbn", "WikiText-103", "PPL", "token", ["WikiText-103"], True),
        ("text_classification_rbn", "yelp", "accuracy, %", "text", ["Yelp"], False),
        ("sequence_tagging_rbn", "conll2003/bin", "F1", "tag", ["CoNLL"], False),
        ("anything", "", "BLEU", "target token", ["IWSLT14"], False),
    ],
)
def test_metrics(task, data, name, unit, shown, lower):
    metric = metric_of(task)
    assert (metric.name, metric.lower, metric.of_paper(data)) == (name, lower, shown)
    assert metric.unit == f"bits per {unit}"


def test_a_score_of_another_task_is_not_counted(language_models, tmp_path):
    (tmp_path / "ln" / "score.json").write_text('{"sacrebleu": {"bleu": 30.0}}')
    (group,) = group_runs([read_run("ln", tmp_path / "ln"), language_models[1]])
    assert group.scores["run"].tolist() == ["rbn"]


def test_a_score_of_another_part_is_told(language_models, tmp_path):
    for name in ("ln", "rbn"):
        path = tmp_path / name / "score.json"
        path.write_text(path.read_text().replace('"test"', '"valid"'))
    (group,) = group_runs([read_run(name, tmp_path / name) for name in ("ln", "rbn")])
    assert group.scored == "PPL (valid)"
