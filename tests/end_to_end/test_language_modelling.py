"""Language modelling: it learns, and its perplexity is that of its probabilities, one by one."""

import json
import math
import re

import pytest
import torch
from fairseq.data import Dictionary

import runs
from command import completed, rbn
from rbn_fairseq.checkpoints.files import read_checkpoint
from saved import load

MODEL = (
    "--arch", "rbn_transformer_lm_tiny", "--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 32,
    "--share-decoder-input-output-embed", "--norm-decoder", "batch",
    "--norm-batch-momentum", 0.1,
)  # fmt: skip
TRAIN = (
    "--criterion", "cross_entropy_rbn", "--rbn-mean-weight", 0.1, "--rbn-std-weight", 0.01,
    "--optimizer", "adam", "--lr", 0.01, "--cpu", "--num-workers", 0, "--no-progress-bar",
)  # fmt: skip
BREAKS = {
    "blocks": ("--sample-break-mode", "none", "--tokens-per-sample", 16, "--max-tokens", 512),
    "sentences": ("--sample-break-mode", "eos", "--tokens-per-sample", 64, "--max-tokens", 512),
}


def train(english, directory, *options):
    return runs.call(
        "train", english / "bin", "--user-dir", runs.USER_DIR, "--task", "language_modeling_rbn",
        *options, "--save-dir", directory,
    )  # fmt: skip


@pytest.fixture(scope="module", params=BREAKS)
def trained(request, english, tmp_path_factory):
    """A save directory, how its text is cut, and the log."""
    directory = tmp_path_factory.mktemp(request.param)
    options = (*MODEL, *TRAIN, *BREAKS[request.param], "--max-epoch", 3)
    return directory, request.param, train(english, directory, *options)


def perplexity(english, directory, cut, split="test"):
    """Of each token given those before it in its block or sentence, one at a time, in fp64."""
    model, _, _ = load(directory / "checkpoint_best.pt", english / "bin")
    model = model.double().eval()
    words = Dictionary.load(str(english / "bin" / "dict.txt"))
    lines = (english / split).read_text().splitlines()
    sentences = [[*(words.index(word) for word in line.split()), words.eos()] for line in lines]
    if cut == "sentences":
        inputs = [[words.eos(), *sentence[:-1]] for sentence in sentences]
        targets = sentences
    else:
        stream = [token for sentence in sentences for token in sentence]
        before = [words.eos(), *stream[:-1]]
        inputs, targets = (
            [part[start : start + 16] for start in range(0, len(part), 16)]
            for part in (before, stream)
        )
    total, tokens = 0.0, 0
    with torch.no_grad():
        for given, wanted in zip(inputs, targets, strict=True):
            for place, target in enumerate(wanted):
                output = model(torch.tensor([given[: place + 1]]))
                logs = model.get_normalized_probs(output, log_probs=True)[0, -1]
                total -= float(logs[target])
                tokens += 1
    return math.exp(total / tokens), total / tokens / math.log(2)


def test_it_learns_and_says_what_it_is(trained):
    directory, cut, log = trained
    losses = [float(loss) for loss in re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", log)]
    assert len(losses) == 3 and losses[2] < losses[0] and losses[2] < 2.6  # 4.9 of 30 types
    assert "norms: decoder batch | statistics of each process's own batch | RBN penalty" in log
    assert "rbn_penalty" in log
    run = json.loads((directory / "run.json").read_text())
    assert run["config"]["model"]["norm_decoder"] == "batch"
    assert run["config"]["model"]["decoder_attention_heads"] == 4  # of the architecture
    tids = runs.tid_rows(directory)
    assert {row["epoch"] for row in tids} == {0, 1, 2, 3}
    assert all(row["layer"].startswith("decoder.layers.") for row in tids)
    conditioning = (directory / "conditioning.jsonl").read_text().splitlines()
    assert {json.loads(line)["layer"] for line in conditioning} == {1, 2}
    # Blocks are of one length: there is no TID given it.
    assert (tids[-1].get("mean_conditional_tid") is not None) == (cut == "sentences")


def test_perplexity(trained, english):
    directory, cut, _ = trained
    expected, nll = perplexity(english, directory, cut)
    log = runs.call(
        "eval_lm", english / "bin", "--user-dir", runs.USER_DIR, "--task", "language_modeling_rbn",
        "--path", directory / "checkpoint_best.pt", "--gen-subset", "test", "--cpu",
        "--num-workers", 0, "--no-progress-bar", *BREAKS[cut],
    )  # fmt: skip
    loss, ppl = map(float, re.search(r"Loss \(base 2\): (\S+), Perplexity: (\S+)", log).groups())
    assert loss == pytest.approx(nll, abs=2e-4) and ppl == pytest.approx(expected, abs=0.02)
    valid = rbn(
        "validate", english / "bin", "--path", directory / "checkpoint_best.pt", "--valid-subset",
        "test", "--cpu", "--num-workers", 0, "--max-tokens", 512,
        "--json", directory / "score.json",
    ).stdout  # fmt: skip
    assert float(re.search(r"\| loss ([\d.]+)", valid)[1]) == pytest.approx(nll, abs=1e-3)
    score = json.loads((directory / "score.json").read_text())["test"]
    assert score.keys() == {"loss", "nll_loss", "ppl"}
    assert score["loss"] == pytest.approx(nll, abs=1e-3)
    assert score["ppl"] == pytest.approx(expected, abs=0.02)


def test_measurements(trained, english, tmp_path):
    directory, cut, _ = trained
    last = directory / "checkpoint_last.pt"
    assert "last layer" in rbn("tid", last).stdout
    out = rbn("cost", last, "--json", tmp_path / "cost.json").stdout
    assert "recalibrated" in out and "length-conditional" not in out
    costs = {row["statistics"]: row for row in json.loads((tmp_path / "cost.json").read_text())}
    state = read_checkpoint(last)
    tokens = sum(len(line.split()) + 1 for line in (english / "valid").read_text().splitlines())
    assert costs["running"]["tokens"] == tokens
    assert costs["running"]["nll"] == pytest.approx(state["extra_state"]["val_loss"], abs=1e-3)
    for verb, nll in (("recalibrate", "recalibrated"), ("fold", "running")):
        completed(verb, last, "--output", tmp_path / f"{verb}.pt")
        log = rbn(
            "validate", english / "bin", "--path", tmp_path / f"{verb}.pt", "--cpu",
            "--num-workers", 0, "--max-tokens", 512,
        ).stdout  # fmt: skip
        loss = float(re.search(r"\| loss ([\d.]+)", log)[1])
        assert loss == pytest.approx(costs[nll]["nll"], abs=2e-3)
    found = rbn("doctor", "--checkpoint", last, "--data", english / "bin").stdout
    assert "rbn_transformer_lm_tiny, --norm-decoder batch" in found
    assert "lines: 61 test" in found and "--norm-encoder" not in found


def test_folding_a_model_that_predicts_a_part_of_its_dictionary(english, tmp_path):
    options = [*MODEL, *TRAIN, *BREAKS["blocks"], "--output-dictionary-size", 12]
    options.remove("--share-decoder-input-output-embed")
    train(english, tmp_path, *options, "--max-update", 2)
    rbn("fold", tmp_path / "checkpoint_last.pt", "--output", tmp_path / "fold.pt")
    loss = {}
    for name in ("checkpoint_last", "fold"):
        out = rbn("validate", english / "bin", "--path", tmp_path / f"{name}.pt", "--cpu",
                  "--num-workers", 0, "--max-tokens", 512).stdout  # fmt: skip
        loss[name] = float(re.search(r"\| loss ([\d.]+)", out)[1])
    assert loss["fold"] == pytest.approx(loss["checkpoint_last"], abs=2e-3)


def test_mixing_and_an_adaptive_softmax(english, tmp_path):
    options = [*MODEL, *TRAIN, *BREAKS["sentences"]]
    options.remove("--share-decoder-input-output-embed")
    options[options.index("cross_entropy_rbn")] = "adaptive_loss_rbn"
    log = train(
        english, tmp_path, *options, "--adaptive-softmax-cutoff", "10,20", "--length-mixing", 4,
        "--max-epoch", 2, "--ddp-backend", "legacy_ddp",
    )  # fmt: skip
    assert "length mixing: 4 buckets" in log
    losses = [float(loss) for loss in re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", log)]
    _, nll = perplexity(english, tmp_path, "sentences", "valid")
    assert losses[1] < losses[0] and losses[1] == pytest.approx(nll, abs=1e-3)


@pytest.mark.parametrize("by", ["options", "hydra"])
def test_the_recipe_with_an_adaptive_softmax_trains(english, tmp_path, by):
    small = {"adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20"}
    if by == "options":
        sizes = [f"--{name.replace('_', '-')}={value}" for name, value in small.items()]
        completed(
            "train", english / "bin", "--recipe", "wikitext103_pre", *sizes, "--arch",
            "rbn_transformer_lm_tiny_pre", "--cpu", "--num-workers", 0, "--max-update", 2,
            "--no-tid", "--save-dir", tmp_path,
        )  # fmt: skip
    else:
        sizes = [f"model.{name}='{value}'" for name, value in small.items()]
        completed(
            "hydra-train", "--config-name", "wikitext103_post", f"task.data={english / 'bin'}",
            *sizes, "model._name=rbn_transformer_lm_tiny",
            "common.cpu=true", "dataset.num_workers=0", "optimization.max_update=2",
            "task.no_tid=true", f"hydra.run.dir={tmp_path}",
        )  # fmt: skip
    model = read_checkpoint(tmp_path / "checkpoint_last.pt")["cfg"]["model"]
    assert model["adaptive_softmax_cutoff"] == "10,20" and model["tie_adaptive_weights"]


def test_another_criterion_is_refused(english, tmp_path):
    options = (*MODEL[:2], *TRAIN, *BREAKS["sentences"], "--adaptive-softmax-cutoff", "10,20")
    with pytest.raises(ValueError, match="adaptive_loss_rbn"):
        train(english, tmp_path, *options, "--max-update", 1)
