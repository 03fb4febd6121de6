"""fairseq's commands on a generated corpus: train, resume, validate, average, translate, sweep."""

import re

import pytest

import runs
from command import completed
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.models import RBNTransformerModel


def validate(data_bin, path):
    out = runs.evaluate("validate", data_bin, path, "--max-tokens", 1000)
    return float(re.search(r"\| loss ([0-9.]+) ", out)[1])


def test_validate_finds_the_loss_that_training_logged(data_bin, rbn_run):
    logged = read_checkpoint(rbn_run / "checkpoint_last.pt")["extra_state"]["val_loss"]
    assert validate(data_bin, rbn_run / "checkpoint_last.pt") == logged


def test_the_whole_test_set_is_translated(data_bin, rbn_run, corpus):
    # 61 sentences: not a multiple of 8, so that fairseq alone would drop 5.
    lines = (corpus / "test.en").read_text().splitlines()
    hypotheses = runs.generate(data_bin, rbn_run / "checkpoint_last.pt")
    assert sorted(hypotheses) == list(range(len(lines))) and len(lines) % 8 != 0


def test_translation_does_not_depend_on_batching(data_bin, rbn_run):
    path = rbn_run / "checkpoint_last.pt"
    together = runs.generate(data_bin, path)
    assert runs.generate(data_bin, path, "--batch-size", 1) == together


def test_a_model_of_the_other_direction(data_bin, corpus, tmp_path):
    """fairseq alone takes the direction of the files' names."""
    runs.train(data_bin, tmp_path, "-s", "en", "-t", "de", "--max-update", 1, "--no-tid")
    path = tmp_path / "checkpoint_last.pt"
    options = ("--cpu", "--num-workers", 0, "--max-len-b", 3, "--beam", 1)
    done = completed("generate", data_bin, "--path", path, *options)
    english = (corpus / "test.en").read_text().splitlines()
    assert dict(re.findall(r"^S-(\d+)\t(.*)$", done.stdout, re.MULTILINE))["0"] == english[0]


def test_ensemble(data_bin, rbn_run):
    one, two = rbn_run / "checkpoint1.pt", rbn_run / "checkpoint2.pt"
    both = runs.generate(data_bin, f"{one}:{two}")
    assert len(both) == len(runs.generate(data_bin, one))
    assert runs.generate(data_bin, f"{one}:{one}") == runs.generate(data_bin, one)


def test_interactive(data_bin, rbn_run, corpus):
    out = runs.evaluate(
        "interactive", data_bin, rbn_run / "checkpoint_last.pt", "--beam", 2, "--max-len-b", 20,
        "--input", corpus / "test.de", "--buffer-size", 100, "--max-tokens", 1000,
    )  # fmt: skip
    lines = [line for line in out.splitlines() if line.startswith("H-")]
    typed = {int(line[2:].split("\t")[0]): line.split("\t")[2] for line in lines}
    assert typed == runs.generate(data_bin, rbn_run / "checkpoint_last.pt")


def test_from_pretrained(data_bin, rbn_run, corpus):
    hub = RBNTransformerModel.from_pretrained(str(rbn_run), "checkpoint_last.pt", str(data_bin))
    source = (corpus / "test.de").read_text().splitlines()[0]
    expected = runs.generate(data_bin, rbn_run / "checkpoint_last.pt")[0]
    assert hub.translate(source, beam=2, max_len_b=20) == expected


def test_bleu_as_best_metric(data_bin, tmp_path):
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch", "--eval-bleu", "--eval-bleu-args",
        '{"beam": 1, "max_len_b": 20}', "--best-checkpoint-metric", "bleu",
        "--maximize-best-checkpoint-metric", "--max-update", 4, "--no-tid",
    )  # fmt: skip
    assert "| bleu " in log
    state = read_checkpoint(tmp_path / "checkpoint_best.pt")
    assert state["extra_state"]["best"] == state["extra_state"]["val_loss"]


def test_a_plain_fairseq_command_line_gains_rbn_with_a_new_optimizer(data_bin, tmp_path):
    # The README's way: a run made with fairseq's criterion goes on with the plugin's.
    runs.train(
        data_bin, tmp_path, "--criterion", "label_smoothed_cross_entropy",
        "--norm-encoder", "batch", "--max-update", 2, "--no-tid",
    )  # fmt: skip
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch", "--rbn-mean-weight", 0.1,
        "--max-update", 4, "--no-tid", "--reset-optimizer",
    )  # fmt: skip
    assert "rbn_penalty" in log


@pytest.fixture(scope="module")
def twins(data_bin, tmp_path_factory):
    """Checkpoints of one training: of this model with layer norms, and of fairseq's."""
    directory = tmp_path_factory.mktemp("twins")
    criterion = ("--criterion", "label_smoothed_cross_entropy")
    common = ("--max-update", 60, "--no-tid", *criterion)
    runs.train(data_bin, directory / "ours", *common)
    runs.train(
        data_bin, directory / "theirs", *common, "--arch", "transformer_tiny",
        "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-attention-heads", 4,
        "--decoder-attention-heads", 4, "--dropout", 0.1,
    )  # fmt: skip
    paths = [directory / who / "checkpoint_last.pt" for who in ("ours", "theirs")]
    ours, theirs = map(read_checkpoint, paths)
    assert ours["model"].keys() == theirs["model"].keys()
    theirs["model"] = ours["model"]
    write_checkpoint(paths[1], theirs)
    return paths


def printed(data_bin, path, *options):
    """What fairseq-generate prints of each sentence, by kind and number; a list of words."""
    out = runs.evaluate("generate", data_bin, path, "--beam", 2, "--max-len-b", 20, *options)
    lines = re.findall(r"^([A-Z]-\d+)\t(.*)$", out, re.MULTILINE)
    return {
        name: re.split("[\t ,-]", rest) if name[0] == "A" else rest.split() for name, rest in lines
    }


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--score-reference",),
        ("--print-alignment", "soft"),
        ("--print-alignment", "hard"),
        ("--prefix-size", 2),
        ("--left-pad-target",),
        ("--nbest", 2, "--sampling", "--sampling-topk", 3, "--seed", 5),
    ],
    ids=lambda options: options[0] if options else "beam",
)
def test_fairseqs_model_and_this_one_print_the_same(data_bin, twins, options):
    ours, theirs = (printed(data_bin, path, *options) for path in twins)
    assert ours.keys() == theirs.keys() and len(ours) > 100
    kinds = {name[0] for name in ours}
    assert {"P", "H"} <= kinds and ("A" in kinds) == ("--print-alignment" in options)
    for name, words in ours.items():
        for word, other in zip(words, theirs[name], strict=True):
            if word != other:  # numbers are printed with four places
                assert float(word) == pytest.approx(float(other), abs=3e-4), name


def test_fairseqs_model_and_this_one_have_the_same_loss(data_bin, twins):
    assert validate(data_bin, twins[0]) == pytest.approx(validate(data_bin, twins[1]), abs=2e-3)


def test_a_training_goes_on_with_fairseqs_model_and_back(data_bin, twins, tmp_path):
    options = ("--criterion", "label_smoothed_cross_entropy", "--no-tid", "--dropout", 0)
    for arch, path in (("transformer_tiny", twins[0]), ("rbn_transformer_tiny", twins[1])):
        log = runs.train(
            data_bin, tmp_path / arch, *options, "--arch", arch, "--encoder-layers", 2,
            "--decoder-layers", 2, "--encoder-attention-heads", 4, "--decoder-attention-heads", 4,
            "--finetune-from-model", path, "--max-update", 2,
        )  # fmt: skip
        assert "done training" in log
    results = [
        read_checkpoint(tmp_path / arch / "checkpoint_last.pt")["extra_state"]["val_loss"]
        for arch in ("transformer_tiny", "rbn_transformer_tiny")
    ]
    assert results[0] == pytest.approx(results[1], abs=2e-3)
