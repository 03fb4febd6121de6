"""`rbn table`: the paper's table of BLEU from directories of evaluated runs."""

import json
import os

import pytest
import torch

from command import rbn, user_error
from rbn_fairseq.checkpoints.files import write_checkpoint
from rbn_fairseq.report.evaluated import benchmark_table, read_evaluated
from run_directories import configuration, norm, write_run

KINDS = ("tokenised", "sacrebleu")
PLANS = {"ln": "LN", "bn": "BN", "rbn": "RBN", "brn": "renorm"}
PLACEMENTS = {"post": "Post-Norm", "pre": "Pre-Norm"}


def scores(bleu, signature="tok:none"):
    return {
        kind: {"bleu": bleu - number, "brevity_penalty": 1.0, "signature": f"{kind}|{signature}"}
        for number, kind in enumerate(KINDS)
    }


@pytest.fixture
def evaluate(tmp_path):
    """Write an evaluated run; ``without`` is its BLEU without recalibration."""

    def one(
        placement, name, seed, bleu, without=None, epochs=(2, 3), signature="tok:none", **changes
    ):
        changes = {"task.data": str(tmp_path / "data"), **changes}
        cfg = configuration(seed, **norm(PLANS[name], PLACEMENTS[placement]) | changes)
        directory = write_run(tmp_path / "runs" / f"{placement}-{name}-seed{seed}", cfg)
        average = {"averaged": [f"/elsewhere/checkpoint{epoch}.pt" for epoch in epochs]}
        state = {"model": {"w": torch.zeros(1)}, "rbn_fairseq": average}
        write_checkpoint(directory / "average.pt", state)
        (directory / "score.json").write_text(json.dumps(scores(bleu, signature)))
        if without is not None:
            path = directory / "score_averaged_statistics.json"
            path.write_text(json.dumps(scores(without)))
        return directory

    (tmp_path / "data").mkdir()
    return one


def table(tmp_path, *options):
    result = rbn("table", "iwslt14", "--runs", tmp_path / "runs", *options)
    assert result.exit_code == 0, result.output
    cells = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in result.output.splitlines() if line.startswith("|")]  # fmt: skip
    return {
        row[0]: dict(zip(cells[0][1:], row[1:], strict=True)) for row in cells[2:]
    }, result.output


def test_means_over_seeds(evaluate, tmp_path):
    evaluate("post", "ln", 1, 30.0)
    for seed, bleu in ((1, 31.5), (2, 32.5), (4, 30.5)):
        evaluate("post", "bn", seed, bleu, bleu - 1)
    evaluate("post", "rbn", 1, 31.0, 30.0)
    evaluate("post", "rbn", 2, 31.0)  # was not evaluated without recalibration
    evaluate("pre", "brn", 1, 29.0)
    output = tmp_path / "rows.json"
    rows, text = table(tmp_path, "--json", output)
    assert rows["Post-BN"] == {
        "tokenised BLEU4": "31.50 ± 1.00", "without recalibration": "30.50", "sacreBLEU": "30.50",
        "n (seeds)": "3 (1-2, 4)", "paper": "",
    }  # fmt: skip
    assert rows["Post-LN"]["without recalibration"] == ""
    assert rows["Post-RBN"]["without recalibration"] == ""
    assert rows["Pre-RBN (official)"]["tokenised BLEU4"] == "" and "Pre-BRN" in rows
    assert "average of epochs 2-3" in text and "tokenised|tok:none" in text
    first = json.loads(output.read_text())[0]
    assert (first["placement"], first["norm"], first["seed"]) == ("post", "bn", 1)
    assert first["tokenised"]["without_recalibration"] == 30.5
    assert first["averaged_epochs"] == [2, 3]


def test_papers_numbers_stand_beside_equals_only(evaluate, tmp_path):
    sizes = {
        f"model.{side}_{name}": size for side in ("encoder", "decoder")
        for name, size in (("layers", 6), ("embed_dim", 512), ("ffn_embed_dim", 1024),
                           ("attention_heads", 4))
    }  # fmt: skip
    about = tmp_path / "data" / "about.json"
    about.write_text(json.dumps({"corpus": "IWSLT14 De-En", "standard": True}))
    evaluate("post", "ln", 1, 35.0, epochs=range(55, 61), **sizes)
    assert table(tmp_path)[0]["Post-LN"]["paper"] == "35.5"

    def papers(epochs):
        runs, _ = read_evaluated(tmp_path / "runs", KINDS, lambda path: epochs)
        return benchmark_table("iwslt14", runs).numbers["paper"].dropna().tolist()

    assert papers(tuple(range(55, 61))) == [35.5] and papers((59, 60)) == []
    about.write_text(json.dumps({"corpus": "IWSLT14 De-En", "standard": False}))
    rows, text = table(tmp_path)
    assert rows["Post-LN"]["paper"] == "" and "withheld" in text


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"epochs": (3,)}, "averaged epochs"),
        ({"signature": "tok:13a"}, "signature of sacrebleu"),
        ({"model.encoder_layers": 3}, "model.encoder_layers"),
        ({"dataset.max_tokens": 9}, "dataset.max_tokens"),
        ({"optimizer.weight_decay": 0.5}, "optimizer.weight_decay"),
    ],
)
def test_mixed_settings_are_refused(evaluate, tmp_path, capsys, changes, name):
    evaluate("post", "ln", 1, 30.0)
    evaluate("post", "bn", 1, 30.0, **changes)
    line = user_error(capsys, "table", "iwslt14", "--runs", tmp_path / "runs")
    assert f"`{name}`" in line and "post-ln-seed1" in line and "post-bn-seed1" in line


def test_one_row_shares_the_norms_options_too(evaluate, tmp_path, capsys):
    evaluate("post", "bn", 1, 30.0)
    evaluate("post", "bn", 2, 30.0, **{"model.norm_batch_momentum": 0.5})
    line = user_error(capsys, "table", "iwslt14", "--runs", tmp_path / "runs")
    assert "`model.norm_batch_momentum`" in line


def test_a_run_that_was_trained_on_is_not_evaluated(evaluate, tmp_path):
    directory = evaluate("post", "ln", 1, 30.0)
    (directory / "checkpoint_last.pt").write_text("")
    score = directory / "score.json"
    os.utime(score, ns=(0, score.stat().st_mtime_ns - 10**9))
    rows, text = table(tmp_path)
    assert rows["Post-LN"]["tokenised BLEU4"] == "" and "post-ln-seed1" in text


def test_refusals(evaluate, tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    arguments = ("--runs", tmp_path / "runs")
    assert "no run is evaluated yet" in table(tmp_path)[1]
    assert "`wmt14`" in user_error(capsys, "table", "wmt14", *arguments)
    assert "--runs" in user_error(capsys, "table", "iwslt14", "--runs", tmp_path / "none")
    directory = evaluate("post", "ln", 1, 30.0)
    (directory / "run.json").rename(tmp_path / "kept.json")
    assert "run.json" in user_error(capsys, "table", "iwslt14", *arguments)
    (tmp_path / "kept.json").rename(directory / "run.json")
    (directory / "score.json").write_text('{"tokenised": {}}')
    assert "score.json" in user_error(capsys, "table", "iwslt14", *arguments)
    write_checkpoint(directory / "average.pt", {"model": {}})
    (directory / "score.json").write_text(json.dumps(scores(30.0)))
    assert "average.pt" in user_error(capsys, "table", "iwslt14", *arguments)
