"""Text classification: from lines to an accuracy that is that of the checkpoint, text by text."""

import json
import random
import re

import pytest
import torch
from fairseq.data import Dictionary

import runs
from command import completed, rbn, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.cli import fairseq_commands
from saved import assert_same_state, load

TASK = ("--task", "text_classification_rbn")
CPU = ("--cpu", "--num-workers", 0, "--no-progress-bar")
MODEL = (
    "--arch", "rbn_transformer_classifier_tiny", "--encoder-embed-dim", 16,
    "--encoder-ffn-embed-dim", 16, "--encoder-layers", 1, "--norm-encoder", "batch",
    "--norm-batch-momentum", 0.1, "--max-source-positions", 16,
)  # fmt: skip
TRAIN = (
    "--criterion", "classification_rbn", "--rbn-mean-weight", 0.1, "--rbn-std-weight", 0.01,
    "--optimizer", "adam", "--lr", 0.01, "--batch-size", 16, *CPU,
    "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric",
)  # fmt: skip
SAMPLERS = {"like length": (), "shuffled": ("--length-mixing", "random")}
WORDS = {"good": "fine great nice".split(), "bad": "dull poor sad".split(), "odd": "weird".split()}


def write_texts(path, number, seed):
    """Texts with one word of their label among others, of many lengths, and `good` more often."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(number):
            label = rng.choice(["good", "good", "bad", "odd"])
            words = rng.choices("the a film was it and so,".split(), k=rng.randrange(1, 20))
            place = rng.randrange(min(len(words), 12) + 1)
            words.insert(place, rng.choice(WORDS[label]).title())
            file.write(f"{label}\t{' '.join(words)}.<br /><br />\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data that `rbn prepare` made, in `bin` and `text`."""
    directory = tmp_path_factory.mktemp("texts")
    for split, number in (("train", 500), ("test", 61)):
        write_texts(directory / f"{split}.tsv", number, seed=len(split))
    command = ("prepare", "classification", "--train", directory / "train.tsv", "--test",
               directory / "test.tsv", "--output", directory / "out", "--jobs", 1)  # fmt: skip
    result = completed(*command)
    assert '"train": 350, "valid": 150, "test": 61' in result.output
    assert "is finished already" in rbn(*command).output
    return directory / "out"


def train(data, directory, *options):
    return runs.call(
        "train", data / "bin", "--user-dir", runs.USER_DIR, *TASK, *MODEL, *TRAIN, "--max-epoch", 4,
        *options, "--save-dir", directory,
    )  # fmt: skip


@pytest.fixture(scope="module", params=SAMPLERS)
def trained(request, data, tmp_path_factory):
    """A save directory, the sampler, and the log."""
    directory = tmp_path_factory.mktemp(request.param.replace(" ", "_"))
    return directory, request.param, train(data, directory, *SAMPLERS[request.param])


def one_by_one(data, path, split):
    """Loss in bits and accuracy in per cent, from the text files, a text at a time, in fp64."""
    model, _, _ = load(path, data / "bin")
    model = model.double().eval()
    words = Dictionary.load(str(data / "bin" / "dict.text.txt"))
    classes = (data / "bin" / "dict.label.txt").read_text().split()[::2]
    texts, labels = (
        (data / "text" / f"{split}.{side}").read_text().splitlines() for side in ("text", "label")
    )
    total, right = 0.0, 0
    for text, label in zip(texts, labels, strict=True):
        tokens = [words.bos(), *(words.index(word) for word in text.split()), words.eos()][:16]
        with torch.no_grad():
            logs = model(torch.tensor([tokens]))[0][0].log_softmax(0)
        total -= float(logs[classes.index(label)])
        right += classes[int(logs.argmax())] == label
    return total / len(texts) / torch.log(torch.tensor(2.0)).item(), 100 * right / len(texts)


def validate(data, path, split="valid"):
    out = rbn("validate", data / "bin", "--path", path, "--valid-subset", split, *TASK,
              "--batch-size", 16, *CPU).stdout  # fmt: skip
    found = re.search(r"\| loss ([\d.]+) \| accuracy ([\d.]+)", out)
    return [float(value) for value in found.groups()]


def test_it_learns_and_says_what_it_is(trained):
    directory, sampler, log = trained
    accuracy = [float(value) for value in re.findall(r"valid.*?\| accuracy ([\d.]+)", log)]
    assert len(accuracy) == 4 and max(accuracy) > 80  # half of the texts have the commonest label
    best = read_checkpoint(directory / "checkpoint_best.pt")["extra_state"]
    assert best["val_loss"] == max(accuracy) == best["best"]
    assert "norms: encoder batch | statistics of each process's own batch | RBN penalty" in log
    assert "per sentence" in log and "rbn_penalty" in log
    assert ("length mixing: random" in log) == (sampler == "shuffled")
    run = json.loads((directory / "run.json").read_text())
    assert run["config"]["model"]["norm_encoder"] == "batch"
    assert run["config"]["model"]["encoder_attention_heads"] == 4  # of the architecture
    tids = runs.tid_rows(directory)
    assert {row["epoch"] for row in tids} == {0, 1, 2, 3, 4}
    assert all(row["layer"].startswith("encoder.layers.") for row in tids)


def test_accuracy_is_that_of_texts_one_by_one(trained, data):
    directory, _, _ = trained
    for split in ("valid", "test"):
        loss, accuracy = one_by_one(data, directory / "checkpoint_best.pt", split)
        assert validate(data, directory / "checkpoint_best.pt", split) == pytest.approx(
            [loss, accuracy], abs=1e-3
        )


def test_scores_alone_go_to_stdout(trained, data, capsys, monkeypatch):
    directory, _, _ = trained
    command = ("validate", data / "bin", "--path", directory / "checkpoint_best.pt", *TASK,
               "--batch-size", 16, *CPU, "--json", "-")  # fmt: skip
    result = rbn(*command)
    assert set(json.loads(result.stdout)) == {"valid"} and "| accuracy" in result.stderr
    monkeypatch.setattr(fairseq_commands, "_run_on_checkpoint", lambda *given: None)
    assert "--distributed-world-size" in user_error(capsys, *command)  # none came here


def test_measurements(trained, data, tmp_path):
    directory, _, _ = trained
    last = directory / "checkpoint_last.pt"
    assert "last layer" in rbn("tid", last).stdout
    assert "length-conditional" in rbn("cost", last, "--json", tmp_path / "cost.json").stdout
    costs = {row["statistics"]: row for row in json.loads((tmp_path / "cost.json").read_text())}
    loss, accuracy = one_by_one(data, last, "valid")
    assert costs["running"]["tokens"] == costs["running"]["sentences"] == 150
    assert costs["running"]["nll"] == pytest.approx(loss, abs=1e-3)
    for verb in ("recalibrate", "fold"):
        completed(verb, last, "--output", tmp_path / f"{verb}.pt")
    assert validate(data, tmp_path / "fold.pt") == pytest.approx([loss, accuracy], abs=2e-3)
    assert validate(data, tmp_path / "recalibrate.pt")[1] > 80
    found = rbn("doctor", "--checkpoint", last, "--data", data / "bin").stdout
    assert "rbn_transformer_classifier_tiny, --norm-encoder batch" in found
    assert "valid.text-label: 150 label, 150 text" in found and "dict.label.txt 7 types" in found
    assert "data and checkpoint fit each other" in found


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_resume(data, tmp_path, sampler):
    options = ("--max-epoch", 2, "--no-tid", *SAMPLERS[sampler])
    train(data, tmp_path / "whole", *options)
    train(data, tmp_path / "stopped", *options, "--max-update", 30)  # 22 or 21 an epoch
    train(data, tmp_path / "stopped", *options)
    assert_same_state(tmp_path / "whole", tmp_path / "stopped")


def test_batches(data, tmp_path):
    """Of like length, or of equal numbers of tokens; `<s>` in front, and nothing too long."""
    _, cfg, task = load(one_update(data, tmp_path), data / "bin")
    task.load_dataset("train")
    pairs = task.dataset("train")
    texts = (data / "text" / "train.text").read_text().splitlines()
    lengths = [min(len(text.split()) + 2, 16) for text in texts]
    assert pairs.src_sizes.tolist() == lengths == [len(pairs[i]["source"]) for i in range(350)]
    assert task.adapter.tokens(pairs).tolist() == lengths and max(lengths) == 16
    batch = pairs.collater([pairs[index] for index in range(9)])
    assert batch["net_input"]["src_tokens"][:, 0].eq(task.source_dictionary.bos()).all()
    assert batch["net_input"].keys() == {"src_tokens", "src_lengths"}
    assert batch["target"].shape == (9, 1) and batch["ntokens"] == 9
    labels = (data / "text" / "train.label").read_text().split()
    names = [task.target_dictionary[int(number)] for number in batch["target"]]
    assert names == [labels[index] for index in batch["id"]]


def test_an_epoch_is_of_one_directory(data, tmp_path):
    """The second has a training part alone, of 96 texts; two epochs, then measuring."""
    part = tmp_path / "part"
    part.mkdir()
    for side in ("text", "label"):
        lines = (data / "text" / f"train.{side}").read_text().splitlines()[:96]
        (part / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    runs.call(
        "preprocess", "-s", "text", "-t", "label", "--trainpref", part / "train", "--destdir",
        part / "bin", "--srcdict", data / "bin/dict.text.txt",
        "--tgtdict", data / "bin/dict.label.txt",
    )  # fmt: skip
    both = f"{data / 'bin'}:{part / 'bin'}"
    command = ("train", both, "--user-dir", runs.USER_DIR, *TASK, *MODEL, *TRAIN, "--max-epoch", 2)
    runs.call(*command, "--save-dir", tmp_path / "run")
    states = [read_checkpoint(tmp_path / "run" / f"checkpoint{epoch}.pt") for epoch in (1, 2)]
    assert [state["optimizer_history"][-1]["num_updates"] for state in states] == [22, 28]
    last = tmp_path / "run" / "checkpoint_last.pt"
    assert "running" in rbn("cost", last).stdout
    found = completed("doctor", "--checkpoint", last, "--data", both)
    assert f"data `{part / 'bin'}`" in found.stdout and "96 text" in found.stdout
    (part / "bin" / "dict.label.txt").unlink()
    completed("doctor", "--data", both)  # all are read by the first's
    (part / "bin" / "dict.text.txt").write_text("film 1\n")
    found = rbn("doctor", "--data", both)
    assert found.exit_code == 1 and "are not those of the first directory" in found.stdout


def one_update(data, directory):
    train(data, directory, "--max-update", 1, "--no-tid")
    return directory / "checkpoint_last.pt"


def test_refused(data, tmp_path, capsys):
    command = ("train", data / "bin", *MODEL, *TRAIN, "--max-update", 1, "--save-dir", tmp_path)
    line = user_error(capsys, *command, "--criterion", "cross_entropy_rbn")
    assert "Give --criterion classification_rbn" in line
    options = "-s", "text", "-t", "label", "--destdir", tmp_path / "bin", "--only-source"
    (tmp_path / "valid.text").write_text("a film\nso\n")
    for labels, message in (("good\nnone\n", "label of text 2 is not in"),
                            ("good\nso good\n", "text 2 has 2 labels")):  # fmt: skip
        (tmp_path / "valid.label").write_text(labels)
        dictionaries = ("--srcdict", data / "bin/dict.text.txt", "--tgtdict",
                        data / "bin/dict.label.txt")  # fmt: skip
        runs.call("preprocess", *options[:-1], "--validpref", tmp_path / "valid", *dictionaries)
        last = one_update(data, tmp_path / "run")
        line = user_error(capsys, "validate", tmp_path / "bin", "--path", last, *TASK, *CPU,
                          "--batch-size", 2)  # fmt: skip
        assert message in line
    for part in ("bin", "idx"):
        (tmp_path / "bin" / f"valid.text-label.label.{part}").unlink()
    line = user_error(capsys, "validate", tmp_path / "bin", "--path", last, *TASK, *CPU)
    assert "has texts and no labels" in line
