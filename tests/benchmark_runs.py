"""Directories of evaluated runs as the scripts leave them, with small checkpoints."""

import copy
import json

import torch

from rbn_fairseq.checkpoints.files import write_checkpoint

SIGNATURES = {
    "tokenised": "nrefs:1|tok:none",
    "sacrebleu": "nrefs:1|tok:13a",
    "compound_split": "nrefs:1|tok:none|split",
}


def scores(bleu, kinds=("tokenised", "sacrebleu"), **signatures):
    """The first kind has ``bleu``, the next one point less, and so on."""
    return {
        kind: {
            "bleu": bleu - number,
            "brevity_penalty": 1.0,
            "signature": signatures.get(kind, SIGNATURES[kind]),
        }
        for number, kind in enumerate(kinds)
    }


def norm_of(name):
    """What the runs of a name have; other names are free to have anything."""
    others = {"pn": "power", "pn_ls": "groupscale+power", "brn": "renorm", "mabn": "mabn"}
    if name in others:
        return {"model.norm_encoder": others[name]}
    if name not in ("ln", "bn", "rbn", "rbn_official"):
        return {}
    weight = 0.1 if name.startswith("rbn") else 0.0
    return {
        "model.norm_encoder": "layer" if name == "ln" else "batch",
        "criterion.rbn_mean_weight": weight,
        "criterion.rbn_std_weight": weight,
    }


def updates_of(number):
    return {"optimizer_history": [{"num_updates": number}]}


class Runs:
    """Makes runs below one directory; every setting can be changed by its dotted name."""

    def __init__(self, root, cfg):
        self.root, self._cfg = root / "runs", cfg
        self.data = root / "data"
        self.data.mkdir()
        self.root.mkdir()

    def about(self, **content):
        (self.data / "about.json").write_text(json.dumps(content))

    def cfg(self, placement, norm, seed, **changes):
        cfg = copy.deepcopy(self._cfg)
        cfg["common"]["seed"], cfg["task"]["data"] = seed, str(self.data)
        for side in ("encoder", "decoder"):
            cfg["model"][f"{side}_normalize_before"] = placement == "pre"
        for name, value in (norm_of(norm) | changes).items():
            section, _, key = name.partition(".")
            cfg[section][key] = value
        return cfg

    def train(self, placement, norm, seed, last=3, name=None, updates=9, **changes):
        """A training that got as far as epoch ``last`` of the settings' 3."""
        directory = self.root / (name or f"{placement}-{norm}-seed{seed}")
        cfg = self.cfg(placement, norm, seed, **changes)
        state = {"model": {"w": torch.zeros(1)}, "cfg": cfg, **updates_of(updates)}
        for checkpoint in (f"checkpoint{last}.pt", "checkpoint_last.pt"):
            write_checkpoint(directory / checkpoint, state)
        return directory

    def evaluate(
        self, placement, norm, seed, bleu, without=None, *, epochs=(2, 3), kinds=None, wrap=dict,
        name=None, signatures=None, updates=9, dictionaries=("a", "b"), **changes,
    ):  # fmt: skip
        """A run with scores; ``without`` is its BLEU without recalibration."""
        directory = self.root / (name or f"{placement}-{norm}-seed{seed}")
        write_checkpoint(
            directory / "average.pt",
            {
                "model": {"w": torch.zeros(1)},
                "cfg": wrap(self.cfg(placement, norm, seed, **changes)),
                **updates_of(updates),
                "task_state": {"dictionaries": list(dictionaries)},
                "rbn_fairseq": {
                    "averaged": [f"/elsewhere/checkpoint{epoch}.pt" for epoch in epochs]
                },
            },
        )
        arguments = {} if kinds is None else {"kinds": kinds}
        files = {"score.json": bleu, "score_averaged_statistics.json": without}
        for file, value in files.items():
            if value is not None:
                content = scores(value, **arguments, **(signatures or {}))
                (directory / file).write_text(json.dumps(content))
        return directory
