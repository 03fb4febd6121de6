"""The commands that would fill what the tables of a report lack."""

import shlex
from pathlib import PurePath
from typing import Optional

from rbn_fairseq.models.config import PRESETS
from rbn_fairseq.report.paper import BENCHMARKS
from rbn_fairseq.report.series import Group, Series
from rbn_fairseq.report.setups import BY_LENGTH, Setup

__all__ = ["AGAINST", "BATCHING", "COST", "SCORE", "TID", "benchmark_of", "train_command"]

#: What would score a run; the same for all, so that a table says it once.
SCORE = (
    "`rbn generate DATA --path SAVE_DIR/checkpoint_last.pt --remove-bpe > generated.txt && "
    "rbn score generated.txt --lang LANG --json SAVE_DIR/score.json`"
)
#: What would test a run's difference to layer norm.
AGAINST = "the command that made SAVE_DIR/score.json with `--against LN/generated.txt`"
#: What would measure TID after training.
TID = "`rbn tid SAVE_DIR --json SAVE_DIR/tid.jsonl`"
#: What would measure TID with batches made in several ways; in one call, which replaces its output.
BATCHING = (
    "`rbn tid SAVE_DIR/checkpoint_last.pt --tid-batching as-trained --tid-batching random "
    "--tid-batching mixed:2 --tid-batching mixed:4 --tid-batching joint:2 "
    "--tid-batching joint:8 --json SAVE_DIR/tid_batching.jsonl`"
)
#: What would measure the discrepancy cost.
COST = "`rbn cost SAVE_DIR/checkpoint_last.pt --json SAVE_DIR/cost.jsonl`"

_SCRIPTS = {"LN": "ln", "BN": "bn", "RBN": "rbn", "PN-only": "pn", "PN+LS": "pn_ls", "BRN": "brn",
            "MABN": "mabn"}  # fmt: skip
_PLANS = {
    "LN": ("--norm-encoder", "layer"),
    "BN": ("--norm-encoder", "batch"),
    "RBN": ("--norm-encoder", "batch", "--rbn-mean-weight", "0.1", "--rbn-std-weight", "0.01"),
    "PN-only": ("--norm-encoder", "power"),
    "PN+LS": ("--norm-encoder", "groupscale+power"),
    "BRN": ("--norm-encoder", "renorm"),
    "MABN": ("--norm-encoder", "mabn"),
}
_BEFORE = ("--encoder-normalize-before", "--decoder-normalize-before")


def benchmark_of(data: str) -> Optional[str]:
    """Return the benchmark that the scripts of this repository call so, by the data's name."""
    return next((name for name in ("iwslt14", "wmt16") if name in data.lower()), None)


def _scripted(setup: Setup) -> Optional[str]:
    """Return the benchmark whose scripts have this model and these data where they stand."""
    name = benchmark_of(setup.data)
    if name is None or PurePath(setup.path).parts[-3:] != ("data", name, "bin"):
        return None
    preset = PRESETS[BENCHMARKS[name].presets["post"]]  # Pre-Norm has the same sizes
    return name if all(preset[key] == size for key, size in setup.sizes) else None


def train_command(group: Group, placement: str, norm: str) -> str:
    """Return what would train a norm that a table lacks, with the settings of the others."""
    known = [one for one in group.series if one.setup.path]
    benchmark = _scripted(known[0].setup) if known else None
    if benchmark and norm in _SCRIPTS and placement in ("Post-Norm", "Pre-Norm"):
        words = f"{_SCRIPTS[norm]} {placement.partition('-')[0].lower()} 1 2 3"
        both = (f"bash scripts/{benchmark}/{verb}.sh {words}" for verb in ("train", "evaluate"))
        return f"`{' && '.join(both)}`"
    data = shlex.quote(known[0].setup.path) if known else "DATA"
    own = next((it.setup.settings for it in known if it.norm == norm), {})
    family = norm.removesuffix(BY_LENGTH)
    plan = _PLANS.get(family, ("--norm-encoder", str(own.get("model.norm_encoder", norm))))
    if family != norm:
        plan += ("--norm-batch-length-bins", str(own.get("model.norm_batch_length_bins", 16)))
    plan = " ".join((*plan, *(_BEFORE if placement == "Pre-Norm" else ())))
    like = _like(group.of(placement) or known)
    return f"`rbn train {data} --save-dir DIR {plan}`{like}"


def _like(series: tuple[Series, ...] | list[Series]) -> str:
    return f", other options as in {series[0].runs[0].name}" if series else ""
