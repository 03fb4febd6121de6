"""The first mistakes of somebody new, most of them refused by fairseq or torch: one line each."""

import errno
import os
import shutil
import subprocess

import pytest
import torch
from fairseq.tasks import setup_task

import runs
from command import completed, rbn, user_error
from rbn_fairseq.cli.errors import explain

CRITERION = ("--criterion", "label_smoothed_cross_entropy")
ADAM = ("--optimizer", "adam")


def options(*more, without=()):
    """Options of a tiny training, those that are given last; fairseq's own criterion."""
    found = [
        *("--arch", "rbn_transformer_tiny", "--share-all-embeddings", "--optimizer", "adam"),
        *("--lr", "0.001", "--cpu", "--num-workers", "0", "--max-update", "1"),
        *("--max-tokens", "500", *map(str, more)),
    ]
    for name in without:
        place = found.index(name)
        del found[place : place + 2]
    return found


@pytest.fixture
def spoilt(data_bin, tmp_path):
    """Copies of the data, each with something wrong."""

    def copy(what):
        target = shutil.copytree(data_bin, tmp_path / what)
        dictionary = target / "dict.de.txt"
        lines = dictionary.read_bytes().splitlines(keepends=True)
        if what == "no training part":
            for path in target.glob("train.*"):
                path.unlink()
        elif what == "truncated":
            path = target / "train.de-en.de.bin"
            path.write_bytes(path.read_bytes()[:100])
        elif what == "empty":  # as fairseq-preprocess makes it of an empty text
            (target / "train.de-en.de.bin").write_bytes(b"")
        elif what == "one side":
            for path in target.glob("train.de-en.en.*"):
                path.unlink()
        elif what == "two dictionaries":
            dictionary.write_bytes(b"".join(lines[:-1]))
        elif what == "malformed":
            dictionary.write_bytes(b"".join([*lines[:3], b"nonsense\n", *lines[4:]]))
        elif what == "not UTF-8":
            dictionary.write_bytes(b"".join([*lines[:3], b"\xe9 3\n", *lines[4:]]))
        return target

    return copy


def test_no_data(capsys):
    for arguments in ((), options()):
        assert "DATA-BIN is missing" in user_error(capsys, "train", *arguments)
    assert "DATA-BIN comes first" in user_error(capsys, "train", "--cpu", "data-bin")


def test_data_may_come_last(data_bin, tmp_path):
    arguments = (*options(), "--save-dir", tmp_path / "run", data_bin)
    completed("train", "--check", *arguments)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (options(without=["--max-tokens"]), ["--max-tokens", "--batch-size"]),
        (
            options("--source-lang", "fr"),
            ["dict.fr.txt", "dict.de.txt, dict.en.txt", "--source-lang"],
        ),
        (options("--max-tokens", 10), ["--max-tokens 10", "longer"]),
        (options("--max-tokens", 3), ["nothing to train on", "longer"]),
        (options("--valid-subset", "nosuch"), ["not found: nosuch (", "fairseq's message"]),
        (options("--restore-file", "nosuch.pt"), ["--restore-file", "`nosuch.pt`"]),
        (options("--continue-once", "nosuch.pt"), ["--continue-once", "`nosuch.pt`"]),
        (options("--finetune-from-model", "."), ["--finetune-from-model", "a directory"]),
        (options("--restore-file", __file__), ["--restore-file", "is no checkpoint, or"]),
        (options("--norm-encodr", "batch"), ["--norm-encodr", "Did you mean `--norm-encoder`"]),
        (options("--rbn-mean-weight", 60), ["--rbn-mean-weight", "rbn options"]),
        (
            options("--arch", "transformer", "--norm-encoder", "batch"),
            ["--norm-encoder", "rbn options"],
        ),
        (options("--arch", "rbn_transformer_tinny"), ["Did you mean `rbn_transformer_tiny`"]),
        (options("--optimizer", "adm"), ["--optimizer", "Did you mean `adam`", "adagrad"]),
        (options("--max-update", "many"), ["--max-update", "many"]),
        (options(without=["--optimizer"]), ["optimizer is required"]),
        (
            options("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"),
            ["no `accuracy`", "--report-accuracy"],
        ),
        *(
            (
                options("--arch", arch, "--task", task, without=["--arch"]),
                [f"--arch {arch} is for --task {right}, not {task}: leave --task out"],
            )
            for arch, task, right in (
                ("rbn_transformer_tiny", "language_modeling_rbn", "translation_rbn"),
                ("rbn_transformer_lm_tiny", "translation_rbn", "language_modeling_rbn"),
                ("rbn_transformer_tagger", "text_classification_rbn", "sequence_tagging_rbn"),
            )
        ),
        (["another", *options()], ["another"]),
        (["--norm", "ln", *options()], ["--norm ln", "--recipe"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_options(capsys, data_bin, tmp_path, arguments, words):
    line = user_error(capsys, "train", data_bin, *arguments, "--save-dir", tmp_path / "run")
    assert all(word in line for word in words), line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_without_a_gpu(capsys, data_bin, tmp_path):
    arguments = (*options("--fp16"), "--save-dir", tmp_path / "run")
    assert "no GPU" in user_error(capsys, "train", data_bin, *arguments)


@pytest.mark.parametrize(
    "what, words",
    [
        ("no training part", ["not found: train"]),
        ("one side", ["`train`", "rbn doctor --data"]),
        ("truncated", []),
        ("empty", ["no sentences", "rbn doctor --data"]),
        ("two dictionaries", ["--share-all-embeddings", "joined dictionary"]),
        ("malformed", ["Incorrect dictionary format", "nonsense"]),
        ("not UTF-8", ["dict.de.txt", "Incorrect encoding"]),
    ],
)
def test_data(capsys, spoilt, tmp_path, what, words):
    data = spoilt(what)
    if words:
        line = user_error(capsys, "train", data, *options(), "--save-dir", tmp_path / "run")
        assert all(word in line for word in words), line
    if what != "two dictionaries":
        result = rbn("doctor", "--data", data)
        assert result.exit_code == 1 and "problem" in result.output
        assert ("has no sentences" in " ".join(result.output.split())) == (what == "empty")


def test_a_divergence(capsys, data_bin, tmp_path):
    huge = ("--optimizer", "sgd", "--lr", "1e30", "--max-update", "9")
    arguments = (*options(*huge), "--save-dir", tmp_path / "run")
    assert "diverged" in user_error(capsys, "train", data_bin, *arguments)
    assert (tmp_path / "run" / "crash.pt").is_file()


def test_too_little_data(capsys, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        for lang in ("de", "en"):
            (text / f"{split}.{lang}").write_text("a b\nc d\n")
    runs.preprocess(text, tmp_path / "bin")
    arguments = (*options(), "--save-dir", tmp_path / "run")
    assert "nothing to train on" in user_error(capsys, "train", tmp_path / "bin", *arguments)


@pytest.mark.parametrize(
    "given, what",
    [(CRITERION, "Optimizer"), (("--criterion", "cross_entropy", *ADAM), "Criterion")],
    ids=["optimizer", "criterion"],
)
def test_what_an_optimizer_cannot_go_on_with(capsys, plain_run, data_bin, tmp_path, given, what):
    directory = shutil.copytree(plain_run, tmp_path / "run")
    common = ("--optimizer", "sgd", "--max-update", "3", "--save-dir", directory)
    sizes = [word for word in runs.TINY if word not in ("--arch", "rbn_transformer_tiny")]
    tiny = options(*sizes, *common, *given)
    line = user_error(capsys, "train", data_bin, *tiny)
    assert f"{what} does not match" in line and "--reset-optimizer" in line
    assert (directory / "checkpoint_last.pt").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "--path CHECKPOINT"),
        (("--path", "nosuch.pt"), "`nosuch.pt`"),
        (("--gen-subset", "nosuch"), "not found: nosuch"),
    ],
)
def test_generate(capsys, rbn_run, data_bin, arguments, words):
    verbs = ["generate", "interactive", "validate"]
    if "--gen-subset" in arguments:
        arguments += ("--path", rbn_run / "checkpoint_last.pt")
        verbs = verbs[:1]
    for verb in verbs:
        assert words in user_error(capsys, verb, data_bin, "--cpu", *arguments)


def test_a_text_in_place_of_a_checkpoint(capsys, data_bin, tmp_path):
    path = tmp_path / "notes.pt"
    path.write_text("text")
    verbs = ("generate", "interactive", "validate")
    translations = [(verb, data_bin, "--cpu", "--path", path) for verb in verbs]
    for arguments in (("tid", path), *translations):
        assert "no checkpoint" in user_error(capsys, *arguments)


def test_data_that_have_moved(capsys, rbn_run, data_bin, tmp_path):
    data = shutil.copytree(data_bin, tmp_path / "here")
    runs.train(data, tmp_path / "run", "--norm-encoder", "batch", "--max-update", 1)
    data.rename(tmp_path / "there")
    capsys.readouterr()
    path = tmp_path / "run" / "checkpoint_last.pt"
    line = user_error(capsys, "tid", path)
    assert str(data) in line and "--data" in line
    completed("tid", path, "--data", tmp_path / "there")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("nosuch", "--last", 2), "`nosuch`"),
        (("nosuch.pt",), "no checkpoint file `nosuch.pt`"),
    ],
)
def test_average(capsys, tmp_path, arguments, words):
    assert words in user_error(capsys, "average", *arguments, "--output", tmp_path / "a.pt")


def test_scores(capsys, tmp_path):
    generated, latin = tmp_path / "generate.txt", tmp_path / "latin"
    generated.write_text("S-0\ta\nT-0\tb\nD-0\t-1\tc\n")
    latin.write_bytes(b"fine\n\xe9\n")
    assert "--lang must be the code" in user_error(capsys, "score", generated, "--lang", "english")
    line = user_error(capsys, "score", generated, "--lang", "en", "--reference", latin)
    assert f"Line 2 of `{latin}` is not UTF-8" in line
    assert "not UTF-8" in user_error(capsys, "score", latin, "--lang", "en")


def test_no_memory():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert "not enough memory" in explain(raised.value)


def test_no_memory_for_a_process():
    """As of a worker that reads data, in the midst of training."""
    code = "def train_step():\n    raise error\ntrain_step()\n"
    refused = raised(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), code)
    assert "not enough memory" in explain(refused)


HYDRA = ("hydra-train", "--config-name")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("iwslt14",), ["--config-name", "Did you mean `iwslt14_p"]),
        (("iwslt14", "--config-dir", "DIR"), ["no iwslt14.yaml in", "DIR"]),
        (("DIR/config.yaml",), ["--config-name", "Rename"]),
        (("default", "--info", "task.data=BIN"), ["--info", "choose from", "config"]),
        (("default", "hydra.run.dir=DIR/run"), ["data directory is missing", "task.data="]),
        (("ptb_post", "task.data=BIN", "preset=small"), ["Hydra: ", "override 'preset'"]),
        (
            ("default", "task.data=BIN", "norm=bacth"),
            ["norm/bacth", "rbn_official_post"],
        ),
        (
            ("default", "task.data=BIN", "-m", "norm=bacth", "hydra.sweep.dir=DIR/sweep"),
            ["norm/bacth"],
        ),
        (("default", "task.data=BIN", "model.norm_encodr=ln"), ["norm_encodr", "+model"]),
        (("default", "task.data=BIN", "model=null"), ["Hydra: ", "must be a string"]),
        (
            ("default", "task.data=BIN", "model.norm_encoder=bacth", "hydra.run.dir=DIR/run"),
            ["--norm-encoder", "Did you mean `batch`"],
        ),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_hydra(forked, data_bin, tmp_path, arguments, words):
    for name in ("own", "config"):
        (tmp_path / f"{name}.yaml").write_text("a: 1")
    filled = [it.replace("DIR", str(tmp_path)).replace("BIN", str(data_bin)) for it in arguments]
    done = subprocess.run([forked / "rbn", *HYDRA, *filled], capture_output=True, text=True)
    *before, last = done.stderr.splitlines()
    assert done.returncode == 2 and last.startswith("rbn: error: "), done.stderr
    assert all(word.replace("DIR", str(tmp_path)) in last for word in words), last
    assert len(before) <= 1  # Hydra's list of what was given


def test_the_traceback_on_demand(capsys, data_bin, monkeypatch, forked):
    command = [forked / "rbn", "train", data_bin, *options(), "--max-update", "many"]
    for value, shown in (("0", False), ("1", True)):
        monkeypatch.setenv("RBN_TRACEBACK", value)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert ("Traceback" in done.stderr) == shown
        assert "rbn: error: " in done.stderr.splitlines()[-1]


def raised(error, code="raise error", file="/somewhere/else.py"):
    try:
        exec(compile(code, file, "exec"), {"error": error})
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError(), ValueError("of no one")])
def test_what_is_no_fault_of_the_user_keeps_its_traceback(error):
    assert explain(raised(error)) is None


def test_what_fairseq_says_is_told_before_training_alone():
    early = raised(ValueError("some rule"), file="/lib/fairseq/tasks/task.py")
    assert explain(early).startswith("some rule")
    code = compile("def train_step():\n    raise error", "/lib/fairseq/tasks/task.py", "exec")
    names = {"error": ValueError("some rule")}
    exec(code, names)
    try:
        exec(compile("train_step()", "/lib/fairseq/trainer.py", "exec"), names)
    except ValueError as caught:
        assert explain(caught) is None


@pytest.mark.parametrize(
    "program",
    [
        "def train_step(): open('/no/such/file')",
        "def train_step(): b'\\xff'.decode()",
        "def build(): a, b = 1, 2, 3",
        "def build(): raise RuntimeError",
        """
def build():
    try:
        raise ValueError("handled")
    except ValueError:
        {}["a bug"]
""",
    ],
    ids=["file", "decode", "unpack", "no ValueError", "bug while handling"],
)
def test_bugs_of_this_package_keep_their_traceback(program, tmp_path, monkeypatch):
    monkeypatch.setattr("rbn_fairseq.cli.errors._PACKAGE", tmp_path)
    file = tmp_path / "module.py"
    call = program.split("(")[0].split()[-1]
    file.write_text(f"{program}\n{call}()\n")
    with pytest.raises(Exception) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {})
    assert explain(caught.value) is None


def test_a_full_disk(capsys):
    """As torch raises it, in the midst of training: the system's refusal is behind another."""
    code = """
def train_step():
    try:
        raise error
    except OSError:
        raise RuntimeError("unexpected pos 64 vs 0")
train_step()
"""
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        line = explain(raised(OSError(number, os.strerror(number)), code))
        assert line.startswith(os.strerror(number)) and "resumes" in line
    assert explain(raised(OSError(errno.EACCES, "no"), code)) is None


def test_errors_of_other_processes():
    from torch.multiprocessing import ProcessRaisedException

    text = """

-- Process 0 terminated with the following error:
Traceback (most recent call last):
  File "/lib/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "{file}", line 12, in build
    raise ValueError(
ValueError: --norm-encoder: unknown norm `bacth`.
"""
    ours = text.format(file=runs.USER_DIR / "norms" / "plan.py")
    error = ProcessRaisedException(ours, 0, 1)
    assert explain(error) == "--norm-encoder: unknown norm `bacth`."
    assert explain(ProcessRaisedException(text.format(file="/else/where.py"), 0, 1)) is None


def test_a_task_of_ones_own_without_its_user_dir():
    with pytest.raises(AssertionError) as caught:
        setup_task({"_name": "translation_counted", "data": "data-bin"})
    line = explain(caught.value)
    assert "translation_counted" in line and "--user-dir" in line
