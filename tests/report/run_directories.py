"""Run directories as fairseq and the monitor leave them, written by hand."""

import copy
import json

from rbn_fairseq.models.config import completed
from rbn_fairseq.report.runs import read_run

WAYS = {"running": 0.02, "recalibrated": 0.012, "pooled": 0.011, "batch": 0.0, "batch-random": 0.01}


def configuration(seed=1, data="data/iwslt14", layers=2, **changes):
    """fairseq's configuration, as far as the report reads it; changes by dotted names."""
    cfg = {
        "_name": None,
        "common": {"seed": seed, "fp16": False},
        "distributed_training": {"distributed_world_size": 1},
        "dataset": {"max_tokens": 4096, "validate_interval": 1},
        "optimization": {"max_epoch": 3, "max_update": 0, "lr": [0.0005], "update_freq": [1]},
        "model": {"_name": "rbn_transformer_tiny", "norm_encoder": "layer"},
        "task": {"_name": "translation_rbn", "data": data, "length_mixing": "1"},
        "criterion": {"rbn_mean_weight": 0.0, "rbn_std_weight": 0.0, "rbn_convention": "paper"},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": 400},
        "ema": None,
    }
    cfg = copy.deepcopy(cfg)
    for side in ("encoder", "decoder"):
        cfg["model"][f"{side}_layers"] = layers
    for name, value in changes.items():
        section, _, key = name.partition(".")
        cfg.setdefault(section, {})[key] = value
    return cfg


def norm(name, placement="Post-Norm", weights=(0.1, 0.01)):
    """What the norms of the paper are in a configuration."""
    changes = {"model.norm_encoder": {"LN": "layer", "BN": "batch", "RBN": "batch"}.get(name, name)}
    if name == "RBN":
        changes |= {"criterion.rbn_mean_weight": weights[0], "criterion.rbn_std_weight": weights[1]}
    for side in ("encoder", "decoder"):
        changes[f"model.{side}_normalize_before"] = placement == "Pre-Norm"
    return changes


def log_text(nll, train=None, ended=True):
    """train.log in fairseq's simple form; ``nll``: of validation, by epoch."""
    lines = []
    for epoch, value in enumerate(nll, 1):
        lines.append(
            f"x | INFO | valid | epoch {epoch:03d} | valid on 'valid' subset | loss {value + 1} "
            f"| nll_loss {value} | bleu {10 + epoch} | num_updates {100 * epoch}"
        )
        metrics = {"loss": value + 2, "nll_loss": value + 1, "gnorm": 1 / epoch, "lr": 0.001}
        metrics |= train or {}
        text = " | ".join(f"{key} {metric}" for key, metric in metrics.items())
        lines.append(
            f"x | INFO | train | epoch {epoch:03d} | {text} | num_updates {100 * epoch} "
            f"| train_wall 50 | wall {60 * epoch}"
        )
    if ended:
        lines.append("x | INFO | fairseq_cli.train | done training in 180.0 seconds")
    return "\n".join(lines) + "\n"


def tid_line(epoch, number, mean, var, **more):
    """One line of tid.jsonl, of the ``number``-th batch norm."""
    site = ("self_attn_layer_norm", "final_layer_norm")[number % 2]
    line = {
        "epoch": epoch, "update": 100 * epoch, "layer": f"encoder.layers.{number // 2}.{site}",
        "mean_tid": mean, "var_tid": var, "batches": 200, "population": "mean-of-batches",
        "dropout": False,
    }  # fmt: skip
    return line | more


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run_file(directory, cfg, dictionaries=None, starts=(0,), sentences=None):
    """run.json as a training writes it; ``dictionaries``: their sizes by language."""
    run = {
        "config": cfg | {"model": completed(cfg["model"])},
        "data": {"vocabularies": dictionaries or {}, "sentences": {"train": sentences}},
        "starts": [{"update": update} for update in starts],
    }
    (directory / "run.json").write_text(json.dumps(run))


def write_run(
    directory, cfg, nll=(5.0, 4.0, 3.5), tid=None, bleu=None, train=None, norms=4, dictionaries=None
):
    """A run; ``tid``: mean and variance TID of the last layer, the same at every epoch.

    Layer number n of N has n/N of the last one's.
    """
    directory.mkdir(parents=True)
    (directory / "train.log").write_text(log_text(nll, train))
    write_run_file(directory, cfg, dictionaries)
    if tid is not None:
        lines = [
            tid_line(epoch, n, tid[0] * (n + 1) / norms, tid[1] * (n + 1) / norms)
            for epoch in range(len(nll) + 1)
            for n in range(norms)
        ]
        write_lines(directory / "tid.jsonl", lines)
    if bleu is not None:
        score = {"bleu": bleu, "brevity_penalty": 1.0, "signature": "nrefs:1|tok:13a"}
        (directory / "score.json").write_text(json.dumps({"sacrebleu": score}))
    return directory


def run_maker(directory):
    """Return a function that writes a run there, and reads it."""

    def make(
        name, kind="LN", placement="Post-Norm", seed=1, changes=(), weights=(0.1, 0.01), **run
    ):
        cfg = configuration(seed, **norm(kind, placement, weights) | dict(changes))
        return read_run(name, write_run(directory / name, cfg, **run))

    return make
