"""fairseq's own commands, called in this process (starting one costs seconds)."""

import contextlib
import importlib
import io
import json
import logging
import sys
from pathlib import Path
from unittest import mock

from rbn_fairseq.checkpoints.hold import let_go
from rbn_fairseq.norms import NORMS

# A learning rate that is above 0, as it must be, and 0 in fp32: the weights stay as they are.
NOTHING = 1e-50

USER_DIR = Path(__file__).resolve().parent.parent / "rbn_fairseq"

TINY = (
    "--arch rbn_transformer_tiny --share-all-embeddings --encoder-embed-dim 64 "
    "--decoder-embed-dim 64 --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128"
).split()

# The same model and training without anything of this package.
PLAIN = (
    "--task translation --arch transformer --criterion label_smoothed_cross_entropy "
    "--encoder-layers 2 --encoder-attention-heads 4 "
    "--decoder-layers 2 --decoder-attention-heads 4"
).split()

RBN = ("--norm-encoder", "batch", "--rbn-mean-weight", 0.1, "--rbn-std-weight", 0.1)


def decoder_plans(name: str, layers: int) -> tuple[str, str]:
    """Plans that put a norm wherever it may stand: in the decoder's layers, behind the last."""
    if name == "mabn":  # a linear layer has to follow
        return f"layer@{layers - 1}.ffn:mabn", "layer"
    return ("layer", "layer") if NORMS[name].leaks else (name, name)


def call(command: str, *arguments: object) -> str:
    """Run ``fairseq-COMMAND ARGUMENTS`` and return what it printed."""
    main = importlib.import_module(f"fairseq_cli.{command}").cli_main
    out = io.StringIO()
    argv = [f"fairseq-{command}", *map(str, arguments)]
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out):
            main()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return out.getvalue()


def preprocess(text: Path, directory: Path) -> None:
    """Make data for fairseq of parallel text, with a joined dictionary."""
    prefixes = (f"--{split}pref {text / split}" for split in ("train", "valid", "test"))
    options = " ".join(prefixes).split()
    call(
        "preprocess", "-s", "de", "-t", "en", *options, "--destdir", directory,
        "--joined-dictionary",
    )  # fmt: skip


def train_arguments(data: Path, save_dir: Path, *options: object) -> list[str]:
    """Return fairseq-train's arguments for a tiny model on the CPU; later options win."""
    arguments = (
        data, "--user-dir", USER_DIR, "--task", "translation_rbn", *TINY,
        "--criterion", "label_smoothed_cross_entropy_rbn", "--label-smoothing", 0.1,
        "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", 0.005,
        "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 50, "--max-tokens", 1000,
        "--cpu", "--num-workers", 0, "--no-progress-bar", "--log-interval", 10,
        "--save-dir", save_dir, *options,
    )  # fmt: skip
    return [str(argument) for argument in arguments]


def train(data: Path, save_dir: Path, *options: object) -> str:
    """Train a tiny model on the CPU and return the log."""
    try:
        return call("train", *train_arguments(data, save_dir, *options))
    finally:
        let_go()  # other processes may go on with it


def evaluate(command: str, data: Path, path: object, *options: object) -> str:
    """Run a command that reads checkpoints, on the CPU, and return what it printed."""
    return call(
        command, data, "--user-dir", USER_DIR, "--task", "translation_rbn", "--path", path,
        "--cpu", "--num-workers", 0, "--no-progress-bar", *options,
    )  # fmt: skip


def generate(data: Path, path: object, *options: object) -> dict[int, str]:
    """Translate the test set and return the best hypothesis by sentence number."""
    out = evaluate("generate", data, path, "--beam", 2, "--max-len-b", 20, *options)
    lines = [line for line in out.splitlines() if line.startswith("H-")]
    return {int(line[2:].split("\t")[0]): line.split("\t")[2] for line in lines}


def tid_rows(save_dir: Path) -> list[dict]:
    """Read ``tid.jsonl``."""
    return [json.loads(line) for line in (save_dir / "tid.jsonl").read_text().splitlines()]
