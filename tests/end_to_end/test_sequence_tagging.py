"""Sequence tagging: it learns, and its F1 is that of its tags, text by text, as seqeval has it."""

import json
import re

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from seqeval.metrics import f1_score

import runs
from command import completed, rbn, user_error
from processes import train_on
from rbn_fairseq.checkpoints.files import read_checkpoint
from saved import load
from tagging import write_tagged

MODEL = (
    "--arch", "rbn_transformer_tagger_tiny", "--encoder-embed-dim", 32,
    "--encoder-ffn-embed-dim", 32, "--norm-encoder", "batch", "--norm-batch-momentum", 0.1,
)  # fmt: skip
TRAIN = (
    "--criterion", "crf_rbn", "--rbn-mean-weight", 0.1, "--rbn-std-weight", 0.01,
    "--optimizer", "adam", "--lr", 0.01, "--batch-size", 8, "--cpu", "--num-workers", 0,
    "--no-progress-bar", "--best-checkpoint-metric", "f1", "--maximize-best-checkpoint-metric",
)  # fmt: skip
SAMPLERS = {"like lengths": (), "shuffled": ("--length-mixing", "random")}
SCHEMES = {"like lengths": "BIO", "shuffled": "BMES"}  # of tags
SIZES = {"train": 300, "valid": 41, "test": 43}


def arguments(data, directory, *options):
    return (
        data / "bin", "--user-dir", runs.USER_DIR, "--task", "sequence_tagging_rbn", *MODEL,
        *TRAIN, "--save-dir", directory, *options,
    )  # fmt: skip


def train(data, directory, *options):
    return runs.call("train", *arguments(data, directory, *options))


def prepare(directory, scheme):
    """Make texts of names, and data of them by the command."""
    write_tagged(directory / "files", SIZES, scheme == "BMES")
    files = [f"--{split}={directory / 'files' / split}.txt" for split in SIZES]
    result = completed("prepare", "tagging", *files, "--output", directory, "--jobs", 1)
    about = json.loads((directory / "bin" / "about.json").read_text())
    assert f'tokens      {{"train": {about["tokens"]["train"]}, "valid": ' in result.output
    labels = Dictionary.load(str(directory / "bin" / "dict.label.txt"))
    assert labels.symbols[4:] == about["tags"]  # nothing is filled up
    assert about["types"] == len(Dictionary.load(str(directory / "bin" / "dict.text.txt")))
    return directory


@pytest.fixture(scope="module")
def bio(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("BIO"), "BIO")


@pytest.fixture(scope="module", params=SAMPLERS)
def trained(request, bio, tmp_path_factory):
    """A save directory, its data, its sampler, and the log."""
    scheme = SCHEMES[request.param]
    data = bio if scheme == "BIO" else prepare(tmp_path_factory.mktemp(scheme), scheme)
    directory = tmp_path_factory.mktemp("run")
    options = (*SAMPLERS[request.param], "--dropout", 0, "--max-epoch", 3, "--tid-batches", 5)
    return directory, data, request.param, train(data, directory, *options)


def f1(data, path, split):
    """Of tags of one text at a time."""
    model, _, task = load(path, data / "bin")
    words, labels = task.source_dictionary, task.target_dictionary
    texts, gold = (
        [line.split() for line in (data / "text" / f"{split}.{side}").read_text().splitlines()]
        for side in ("text", "label")
    )
    predicted = []
    with torch.no_grad():
        for text in texts:
            tokens = torch.tensor([[*map(words.index, text), words.eos()]])
            (best,) = model.eval().decode(model(tokens))
            predicted.append([labels[number] for number in best])
    return 100 * f1_score(gold, predicted)


def validated(data, path, split, *options):
    out = rbn(
        "validate", data / "bin", "--path", path, "--valid-subset", split, "--cpu",
        "--num-workers", 0, *options,
    ).stdout  # fmt: skip
    values = re.findall(r"\| (loss|f1|precision|recall) ([\d.]+)", out)
    return {name: float(value) for name, value in values}


def test_it_learns_and_says_what_it_is(trained):
    directory, data, sampler, log = trained
    scores = [float(score) for score in re.findall(r"valid on 'valid' .* f1 ([\d.]+)", log)]
    assert len(scores) == 3 and max(scores[1:]) > 65 > scores[0]  # which of them varies
    assert "norms: encoder batch | statistics of each process's own batch | RBN penalty" in log
    tags = json.loads((data / "bin" / "about.json").read_text())["tokens"]["train"]
    per_batch = tags / 37  # 300 texts in batches of 8; 4 are left out
    size = float(re.search(r"micro-batches of (\d+) tokens", log)[1])
    assert size == pytest.approx(per_batch, rel=0.05)
    assert ("length mixing: random" in log) is (sampler == "shuffled")
    assert max(scores) == pytest.approx(
        read_checkpoint(directory / "checkpoint_best.pt")["extra_state"]["best"], abs=1e-3
    )
    tids = runs.tid_rows(directory)
    assert {row["epoch"] for row in tids} == {0, 1, 2, 3}
    assert all(row["layer"].startswith("encoder.layers.") for row in tids)


def test_f1_is_that_of_single_texts(trained):
    directory, data, _, _ = trained
    best = directory / "checkpoint_best.pt"
    for split in ("valid", "test"):
        assert validated(data, best, split)["f1"] == pytest.approx(f1(data, best, split), abs=2e-3)
    assert f1(data, best, "valid") == pytest.approx(
        read_checkpoint(best)["extra_state"]["best"], abs=2e-3
    )


def test_two_processes_score_as_one(forked, bio, tmp_path):
    options = ("--batch-size", 4, "--max-epoch", 2, "--no-tid", "--seed", 2)
    log = train_on(2, forked, arguments(bio, tmp_path, *options))
    scores = [float(score) for score in re.findall(r"valid on 'valid' .* f1 ([\d.]+)", log)]
    alone = validated(bio, tmp_path / "checkpoint_last.pt", "valid")["f1"]
    assert scores[-1] == pytest.approx(alone, abs=2e-3) and 5 < alone < 99


def test_measurements(trained, tmp_path):
    directory, data, _, _ = trained
    last = directory / "checkpoint_last.pt"
    known = validated(data, last, "valid")
    assert "last layer" in rbn("tid", last).stdout
    assert "recalibrated" in rbn("cost", last, "--json", tmp_path / "cost.json").stdout
    costs = {row["statistics"]: row for row in json.loads((tmp_path / "cost.json").read_text())}
    about = json.loads((data / "bin" / "about.json").read_text())
    assert costs["running"]["tokens"] == about["tokens"]["valid"]
    assert costs["running"]["sentences"] == SIZES["valid"]
    assert costs["running"]["nll"] == pytest.approx(known["loss"], abs=1e-3)
    assert costs["recalibrated"]["nll"] != costs["running"]["nll"]
    for verb in ("recalibrate", "fold"):
        completed(verb, last, "--output", tmp_path / f"{verb}.pt")
    folded = validated(data, tmp_path / "fold.pt", "valid")
    assert folded == pytest.approx(known, abs=2e-3)
    again = validated(data, tmp_path / "recalibrate.pt", "valid")
    assert again["loss"] == pytest.approx(costs["recalibrated"]["nll"], abs=2e-3)
    doctor = rbn("doctor", "--checkpoint", last, "--data", data / "bin").stdout
    assert "rbn_transformer_tagger_tiny, --norm-encoder batch" in doctor
    assert "problem" not in doctor


def test_folding_of_normalised_weights(bio, tmp_path):
    train(bio, tmp_path, "--norm-weight", "wn", "--max-update", 2, "--no-tid")
    last, folded = tmp_path / "checkpoint_last.pt", tmp_path / "fold.pt"
    completed("fold", last, "--output", folded)
    losses = [validated(bio, path, "valid")["loss"] for path in (folded, last)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)


def test_long_texts_are_cut_with_their_tags(bio, tmp_path):
    log = train(
        bio, tmp_path, "--max-source-positions", 9, "--max-update", 2, "--no-tid",
        "--disable-validation",
    )  # fmt: skip
    lines = (bio / "text" / "train.text").read_text().splitlines()
    lengths = np.array([len(line.split()) for line in lines])
    assert f"train: {(lengths > 8).sum()} texts have more than 8 tokens" in log
    assert f"Give --max-source-positions {lengths.max() + 1} to keep all" in log
    _, _, task = load(tmp_path / "checkpoint_last.pt", bio / "bin")
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert (dataset.src_sizes == np.minimum(lengths, 8) + 1).all()
    assert (dataset.tgt_sizes == np.minimum(lengths, 8)).all()
    labels = (bio / "text" / "train.label").read_text().splitlines()
    for index in (lengths.argmax(), lengths.argmin()):
        item, size = dataset[index], min(lengths[index], 8)
        assert task.source_dictionary.string(item["source"]) == " ".join(
            lines[index].split()[:size]
        )
        assert item["source"][-1] == 2 and len(item["source"]) == size + 1
        assert [task.target_dictionary[tag] for tag in item["target"]] == labels[index].split()[
            :size
        ]


@pytest.mark.parametrize("text, tags", [("a b", "O"), ("", "")])
def test_texts_without_a_tag_for_each_token_are_refused(tmp_path, text, tags):
    for side, line in (("text", text), ("label", tags)):
        (tmp_path / f"train.{side}").write_text(f"O\n{line}\n")
    runs.call("preprocess", "-s", "text", "-t", "label", "--trainpref", tmp_path / "train",
              "--destdir", tmp_path / "bin")  # fmt: skip
    words = f"text 2 has {len(text.split())} tokens and {len(tags.split())} tags"
    with pytest.raises(ValueError, match=words):
        train(tmp_path, tmp_path / "run", "--max-update", 1, "--disable-validation", "--no-tid")


def test_other_criterions_and_models_are_refused(bio, data_bin, tmp_path, capsys):
    with pytest.raises(ValueError, match="Give --criterion crf_rbn"):
        train(bio, tmp_path, "--criterion", "cross_entropy_rbn")
    arguments = runs.train_arguments(data_bin, tmp_path, "--criterion", "crf_rbn")
    place = arguments.index("--label-smoothing")
    del arguments[place : place + 2]
    with pytest.raises(ValueError, match="it is for rbn_transformer_tagger"):
        runs.call("train", *arguments)
    line = user_error(capsys, "train", data_bin, *MODEL, *TRAIN, "--save-dir", tmp_path)
    assert "has no dict.text.txt" in line


@pytest.mark.parametrize("recipe", ["conll2003_pre", "resume_post"])
def test_a_recipe_takes_the_data(bio, recipe):
    small = ("--encoder-embed-dim", 28, "--encoder-ffn-embed-dim", 32, "--cpu", "--check")
    out = rbn("train", bio / "bin", "--recipe", recipe, "--norm", "rbn", *small)
    assert f"ok: rbn_transformer_tagger_{recipe.removesuffix('_post')}" in out.stdout, out.output


@pytest.mark.parametrize("recipe", ["conll2003_post", "resume_pre"])
def test_a_recipe_trains_by_hydra(bio, tmp_path, recipe):
    tiny = f"rbn_transformer_tagger_tiny{recipe[recipe.index('_') :].removesuffix('_post')}"
    completed(
        "hydra-train", "--config-name", recipe, f"task.data={bio / 'bin'}", f"model._name={tiny}",
        "optimization.lr=[0.01]", "optimization.max_update=2", "lr_scheduler.warmup_updates=0",
        "lr_scheduler.total_num_update=4", "common.cpu=true", "dataset.num_workers=0",
        "task.no_tid=true", f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    (group,) = state["last_optimizer_state"]["param_groups"]
    assert group["lr"] == pytest.approx(0.01 / 2) and group["momentum"] == 0.9


def test_it_does_not_translate(trained, capsys):
    directory, data, _, _ = trained
    line = user_error(capsys, "train", data / "bin", "--check")
    assert "--recipe" in line and "conll2003_post" in line
    best = directory / "checkpoint_best.pt"
    line = user_error(capsys, "generate", data / "bin", "--path", best, "--cpu")
    assert "sequence_tagging_rbn" in line and "rbn validate" in line
