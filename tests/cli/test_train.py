"""`rbn train`: the log, checks, and what is left of a training."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runs
from command import completed, rbn, user_error
from processes import rendezvous
from rbn_fairseq import recipes
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.cli.fairseq_commands import plugin_options
from rbn_fairseq.cli.recipe_options import with_recipe
from rbn_fairseq.report.runs import read_run
from shell import succeed

ROOT = Path(__file__).resolve().parent.parent.parent


def given(*arguments):
    """Options of a tiny training for `rbn train`, which puts --user-dir in itself."""
    words = runs.train_arguments(*arguments)
    del words[1:3]
    return words


SMALL = (
    "--preset small --cpu --num-workers 0 --max-update 2 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --log-interval 1"
).split()


def test_a_recipe_may_say_where_its_run_goes(data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [default, _self_]\ncheckpoint: {save_dir: here}\n")
    train = ("train", data_bin, "--recipe", mine, *SMALL, "--check")
    assert "updates so far in here" in rbn(*train).stdout
    assert "updates so far in there" in rbn(*train, "--save-dir", "there").stdout
    mine.write_text("defaults: [default, _self_]\ncheckpoint: {save_dir: 'x${common.seed}'}\n")
    assert "updates so far in runs/mine" in rbn(*train).stdout  # for Hydra alone
    mine.write_text("defaults: [default, _self_]\nhydra: {mode: MULTIRUN, searchpath: [here]}\n")
    assert recipes.find(str(mine)) == mine


def test_the_architecture_chooses_the_task():
    for kind, task in (
        ("", "translation"), ("_lm", "language_modeling"), ("_classifier", "text_classification"),
        ("_tagger", "sequence_tagging"),
    ):  # fmt: skip
        options = plugin_options(["--arch", f"rbn_transformer{kind}_tiny"], None)
        assert options[-2:] == ["--task", f"{task}_rbn"]


def test_other_parts_take_the_place_of_the_recipes(data_bin, tmp_path, monkeypatch):
    """What the given ones do not have is left out; the rest stays."""
    monkeypatch.chdir(tmp_path)
    given = ("--optimizer", "nag", "--criterion", "label_smoothed_cross_entropy")
    result = completed("train", data_bin, *SMALL, *given, "--check")
    left_out = "--rbn-mean-weight, --rbn-std-weight, --rbn-convention, --rbn-reduction"
    assert f"no such options: {left_out}, --adam-betas" in result.output
    assert "--label-smoothing 0.1" in result.output and "--adam-betas '" not in result.output
    plain = ("--recipe", "default", "--norm", "ln", "--arch", "transformer")
    result = completed("train", data_bin, *SMALL, *plain, "--check")
    assert "no such options: --norm-encoder" in result.output


def test_the_default_recipe_and_its_log(data_bin, tmp_path, monkeypatch):
    """Embeddings are shared, as the dictionaries are the same; later options win."""
    monkeypatch.chdir(tmp_path)
    result = completed("train", data_bin, *SMALL, "--seed", 3, "--norm", "bn")
    assert "recipe default, norm bn: rbn train" in result.output
    run = Path("runs/default", "-".join(data_bin.parts[-2:]), "bn-small-seed3")
    cfg = read_checkpoint(run / "checkpoint_last.pt")["cfg"]
    assert cfg["model"]["share_all_embeddings"] and cfg["model"]["norm_encoder"] == "batch"
    assert cfg["model"]["encoder_embed_dim"] == 16 and cfg["model"]["encoder_layers"] == 2
    assert cfg["common"]["seed"] == 3

    told = read_run("bn", run)
    assert not told.problems, told.problems
    assert told.valid[["epoch", "update"]].to_numpy().tolist() == [[1, 2]]
    assert list(told.train["update"]) == [2] and len(told.tid)
    assert told.config["model"]["norm_encoder"] == "batch"
    assert [lang for lang, _ in told.vocabularies] == ["de", "en"]
    inner = [line for line in (run / "train.log").read_text().splitlines() if '"update": ' in line]
    assert len(inner) == 2 and all('"num_updates": "' in line for line in inner)
    again = rbn("train", data_bin, *SMALL, "--seed", 3, "--norm", "bn", "--check")
    assert f"goes on with the training in {run}" in again.output
    assert "2 updates so far" in again.output


def test_a_plan_of_ones_own_has_no_penalty_of_the_recipe(data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for plan in ("layer", "batch@0:layer"):
        result = completed("train", data_bin, *SMALL, "--norm-encoder", plan, "--check")
        assert "--rbn-mean-weight 0.0" in result.output and "norm ln" in result.output
        name = plan.replace("@", "_").replace(":", "_")
        assert f"/{name}-small-seed1" in result.output
        result = rbn("train", data_bin, *SMALL, "--norm", "rbn", "--norm-encoder", plan, "--check")
        assert "layer" in plan[:5] or f"/rbn-{name}-small-seed1" in result.output


def test_another_metric_than_a_recipes_score_is_not_maximised(tmp_path):
    words = [str(tmp_path), "--best-checkpoint-metric", "loss"]
    for given, number in ((words, 0), (words[:1], 1), ([*words[:2], "accuracy"], 1)):
        all_words = with_recipe(given, None, "imdb_post", {"norm": "bn", "preset": None})
        assert all_words.count("--maximize-best-checkpoint-metric") == number


def test_options_that_make_another_model_have_a_directory_of_their_own(
    data_bin, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for given, name in (
        (("--norm-unit-embeddings", "--norm-small-init"), "fixnorm-small_init"),
        (("--length-mixing", 16, "--dropout", 0), "length_mixing_16"),
        (
            ("--encoder-normalize-before", "--norm-batch-momentum=0.1"),
            "pre-norm_batch_momentum_0.1",
        ),
    ):
        result = completed("train", data_bin, *SMALL, "--norm", "ln", *given, "--check")
        assert f"/ln-{name}-small-seed1" in result.output


def test_more_processes_than_one_are_fairseqs_to_count():
    """By a port or an address: a recipe's one GPU would have them train alone."""
    for given, number in ((), 1), (("--distributed-port", "29500"), 0):
        words = with_recipe(["bin", *given], None, "default", {"norm": "ln", "preset": None})
        assert words.count("--distributed-world-size") == number


def test_a_check_sees_schedules(capsys, data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = ("--norm-encoder", "repbn", "--norm-repbn-layer-end", 3)
    completed("train", data_bin, *SMALL, *plan, "--max-update", 3, "--check")
    line = user_error(capsys, "train", data_bin, *SMALL, *plan, "--check")
    assert "--norm-repbn-layer-end 3" in line


def test_a_check_counts_the_batches_of_each_process(capsys, data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--max-tokens", 60, "--max-epoch", 1, "--max-update", 0, "--norm-encoder", "repbn")

    def batches(*options):
        result = completed("train", data_bin, *SMALL, *small, *options, "--check")
        return int(re.search(r"([\d,]+) batches an epoch", result.output)[1].replace(",", ""))

    one = batches("--norm-repbn-layer-end", 1)
    two = ("--distributed-world-size", 2)
    half = batches(*two, "--norm-repbn-layer-end", 1)
    assert half == math.ceil(one / 2) < one
    assert batches("--norm-repbn-layer-end", one) == one
    line = user_error(
        capsys, "train", data_bin, *SMALL, *small, *two, "--norm-repbn-layer-end", one, "--check"
    )
    assert f"this training, which has {half} updates" in line


@pytest.mark.nightly
@pytest.mark.parametrize("verb", ["train", "hydra-train"])
def test_known_warnings_are_not_shown(verb, data_bin, tmp_path):
    """In a process of its own: Python shows a warning once."""
    settings = [data_bin, *SMALL, "--save-dir", tmp_path]
    if verb == "hydra-train":
        settings = ["--config-name", "default", "preset=small", f"task.data={data_bin}"]
        settings += ["common.cpu=True", "dataset.num_workers=0", "optimization.max_update=1"]
        settings += [f"checkpoint.save_dir={tmp_path}", f"hydra.run.dir={tmp_path}"]
    command = [sys.executable, "-m", "rbn_fairseq", verb, *map(str, settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_embeddings_are_not_shared_where_dictionaries_differ(data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = shutil.copytree(data_bin, tmp_path / "data")
    with (other / "dict.de.txt").open("a") as file:
        file.write("another 1\n")
    result = completed("train", other, *SMALL, "--check")
    assert "--share-all-embeddings" not in result.output and "ok: rbn_trans" in result.output


@pytest.mark.parametrize(
    "options",
    [
        ["--share-decoder-input-output-embed"],
        ["--encoder-embed-dim", "512", "--decoder-embed-dim", "256"],
        ["--encoder-embed-path=a", "--decoder-embed-path", "b"],
        ["--criterion", "adaptive_loss_rbn", "--adaptive-softmax-cutoff", "20,40"],
    ],
)
def test_embeddings_are_not_shared_against_what_is_given(data_bin, options):
    def words(*given):
        return with_recipe([str(data_bin), *given], None, "default", {"norm": "bn", "preset": None})

    assert "--share-all-embeddings" in words()
    assert "--share-all-embeddings" not in words(*options)


def test_direct_trainings_use_one_gpu(data_bin, tmp_path, monkeypatch):
    """fairseq alone takes every GPU that it sees, and multiplies the batch."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    assert "batches an epoch;" in completed("train", *given(data_bin, tmp_path, "--check")).output


@pytest.mark.parametrize("shown", ["simple", "json", "none", "tqdm", "tensorboard"])
def test_the_log_does_not_depend_on_what_is_shown(data_bin, tmp_path, shown):
    wrapped = shown == "tensorboard"
    how = ("--tensorboard-logdir", tmp_path / "tb") if wrapped else ("--log-format", shown)
    arguments = given(data_bin, tmp_path / "run", "--max-update", 2, *how, "--log-interval", 1)
    arguments.remove("--no-progress-bar")
    completed("train", *arguments)
    assert (tmp_path / "tb" / "train_inner").is_dir() == wrapped
    told = read_run("run", tmp_path / "run")
    assert not told.problems and list(told.valid["update"]) == list(told.train["update"]) == [2]
    text = (tmp_path / "run" / "train.log").read_text()
    assert text.count('{"epoch": ') == 4  # two updates, an epoch, a validation
    # What is committed of a run in results/ has all that a report reads.
    (begin,) = (line for line in text.splitlines() if "No existing checkpoint found" in line)
    (tmp_path / "early").mkdir()  # one that ended before its first epoch did
    (tmp_path / "early" / "train.log").write_text(f"{begin}\n")
    score = {"tokenised": {"bleu": 3.0, "signature": "none"}}
    (tmp_path / "run" / "score_averaged_statistics.json").write_text(json.dumps(score))
    succeed("../results/keep.sh", tmp_path / "kept", tmp_path / "early", tmp_path / "run")
    assert not (tmp_path / "kept" / "early" / "train.log").exists()
    kept = read_run("run", tmp_path / "kept" / "run")
    assert kept.valid.equals(told.valid) and kept.train.equals(told.train) and not kept.problems
    assert kept.config["model"] == told.config["model"] and kept.averaged_scores == score
    files = [(tmp_path / "kept" / "run" / name).read_text() for name in ("run.json", "train.log")]
    assert "No existing checkpoint found checkpoint_last.pt" in files[1]
    assert not any(str(tmp_path) in file for file in files)


def test_a_log_that_the_shell_writes(data_bin, tmp_path, forked):
    log = tmp_path / "train.log"
    arguments = given(data_bin, tmp_path, "--max-update", 1, "--log-format", "json")
    with log.open("w") as file:
        subprocess.run([forked / "rbn", "train", *arguments], stdout=file, check=True)
    assert log.read_text().count("done training") == 1
    assert list(read_run("run", tmp_path).valid["update"]) == [1]


def test_a_check_trains_nothing(data_bin, tmp_path, rbn_run, capsys):
    def check(directory, *options):
        arguments = given(data_bin, directory, *options)
        return ["train", *arguments, "--check"]

    result = rbn(*check(tmp_path / "run"))
    assert result.exit_code == 0 and not (tmp_path / "run").exists()
    assert "0 updates so far" in result.output
    line = user_error(capsys, *check(tmp_path / "run", "--norm-encoder", "bacth"))
    assert "Did you mean `batch`" in line
    directory = shutil.copytree(rbn_run, tmp_path / "again")
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    result = rbn(*check(directory, "--norm-encoder", "batch", "--rbn-mean-weight", 0.1))
    updates = read_checkpoint(directory / "checkpoint_last.pt")["optimizer_history"][-1]
    assert f"{updates['num_updates']} updates so far" in result.output
    own = ("--norm-encoder", "batch", "--rbn-mean-weight", 0.1)
    other = rbn(*check(directory, *own, "--encoder-ffn-embed-dim", 24))
    assert "Cannot load model parameters" in str(other.exception)
    assert before == {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    damaged = directory / "checkpoint_last.pt"  # which a training would mend
    damaged.write_bytes(damaged.read_bytes()[:1000])
    user_error(capsys, *check(directory, *own))
    assert damaged.stat().st_size == 1000


def test_an_average_is_no_checkpoint_to_resume_from(data_bin, rbn_run, tmp_path, capsys):
    def train(*options):
        arguments = given(data_bin, tmp_path / "run", *runs.RBN, "--max-update", 3, *options)
        return ["train", *arguments]

    (tmp_path / "run").mkdir()
    average = tmp_path / "run" / "checkpoint_last.pt"
    completed("average", rbn_run, "--last", 2, "--output", average)
    before = average.read_bytes()
    line = user_error(capsys, *train())
    assert "no state of the optimizer" in line and "--reset-optimizer" in line
    assert average.read_bytes() == before
    line = user_error(capsys, *train("--restore-file", average))
    assert "no state of the optimizer" in line
    line = user_error(capsys, *train("--continue-once", average, "--save-dir", tmp_path / "new"))
    assert "no state of the optimizer" in line
    completed(*train("--reset-optimizer", "--reset-dataloader"))


def test_a_damaged_file_is_not_trained_on(data_bin, tmp_path, rbn_run, capsys):
    content = bytearray((rbn_run / "checkpoint_last.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "parent.pt").write_bytes(content)
    for option in ("--restore-file", "--finetune-from-model"):
        arguments = given(data_bin, tmp_path / "run", *runs.RBN, option, tmp_path / "parent.pt")
        line = user_error(capsys, "train", *arguments, "--max-update", 1)
        assert f"{option}: " in line and "damaged one" in line


def test_the_last_checkpoint_by_its_path_is_mended(data_bin, tmp_path, rbn_run):
    directory = tmp_path / "run"
    directory.mkdir()
    shutil.copy(rbn_run / "checkpoint2.pt", directory)  # killed before it was copied to the last
    last = directory / "checkpoint_last.pt"
    arguments = given(data_bin, directory, *runs.RBN, "--restore-file", last, "--max-epoch", 3)
    completed("train", *arguments)
    assert "resumes from" in (log := (directory / "train.log").read_text())
    assert "epoch 001" not in log


def test_a_file_to_restore_from_may_come_later(data_bin, tmp_path, caplog):
    directory = tmp_path / "run"
    arguments = given(
        data_bin, directory, "--max-update", 1, "--restore-file", directory / "checkpoint1.pt"
    )
    completed("train", *arguments)
    assert "checkpoint1.pt is not there yet" in (directory / "train.log").read_text()


@pytest.mark.parametrize("norm", ["batch", "bacth"])
def test_two_processes(data_bin, forked, tmp_path, norm):
    """Each loads the plugin, and tells of what is wrong; the first one writes the log."""
    arguments = given(
        data_bin, tmp_path / "run", "--norm-encoder", norm, "--max-update", 2,
        "--distributed-world-size", 2, "--distributed-backend", "gloo", "--ddp-backend",
        "legacy_ddp", "--distributed-no-spawn",
        "--distributed-init-method", rendezvous(),
    )  # fmt: skip
    processes = [
        subprocess.Popen(
            [forked / "rbn", "train", *arguments, "--distributed-rank", str(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    shown, told = zip(*(process.communicate(timeout=300) for process in processes), strict=True)
    if norm == "batch":
        assert ["done training" in text for text in shown] == [True, False]
        assert [process.returncode for process in processes] == [0, 0], told
        log = (tmp_path / "run" / "train.log").read_text()
        assert log.count("done training") == log.count('"train_num_updates": "2"') == 1
    else:
        assert [process.returncode for process in processes] == [2, 2]
        assert all("Did you mean `batch`" in text for text in told)
