"""What fairseq saved of a training, and under which names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data.data_utils import numpy_seed

from rbn_fairseq.checkpoints.files import is_whole, read_checkpoint

__all__ = ["BEST", "LAST", "Saved", "oldest_first"]

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


@dataclass(frozen=True)
class Saved:
    """A whole checkpoint of a training.

    Attributes:
        path: the file.
        updates: how many the training had done.
        best: the best score until then.
        names: every name that fairseq may have saved it under.
        copies: those of them that a save ends with.
    """

    path: Path
    updates: int
    best: Any
    names: list[str]
    copies: list[str]


def oldest_first(paths: Iterable[Path]) -> list[Saved]:
    """Return what fairseq saved of a training among files, without damaged ones."""
    return sorted(filter(None, map(_saved, paths)), key=lambda saved: saved.updates)


def _saved(path: Path) -> Saved | None:
    """Read what a file is; ``None`` if fairseq did not save a training under that name."""
    if not is_whole(path):
        return None
    try:
        state = read_checkpoint(path, mmap=True)
        extra, options = state["extra_state"], state["cfg"]["checkpoint"]
        epoch, done = (extra["train_iterator"][k] for k in ("epoch", "iterations_in_epoch"))
        epoch = epoch if done else epoch - 1
        updates = int(state["optimizer_history"][-1]["num_updates"])
        best, score = extra.get("best"), extra.get("val_loss")
        # As in fairseq's checkpoint_utils.save_checkpoint.
        first = f"checkpoint_{epoch}_{updates}.pt" if done else f"checkpoint{epoch}.pt"
        copies = [BEST] if score is not None and score == best else []
        other = []
        if score is not None and options["keep_best_checkpoints"] > 0:
            with numpy_seed(epoch, updates, score):
                digit = np.random.randint(0, options["keep_best_checkpoints"])  # noqa: NPY002
            prefix = f"checkpoint.best_{options['best_checkpoint_metric']}_"
            other = [f"{prefix}{score:.3f}{digit}.pt"]
            if _is_kept(score, _scores(path.parent, prefix), best, options):
                copies += other
        if not options["no_last_checkpoints"]:
            copies.append(LAST)
    except (ValueError, LookupError, TypeError):  # no checkpoint, or not of a training
        return None
    names = [first, *other, *copies]
    return Saved(path, updates, best, names, copies) if path.name in names else None


def _scores(directory: Path, prefix: str) -> list[float]:
    """Return the scores in the names of --keep-best-checkpoints."""
    pattern = re.compile(re.escape(prefix) + r"(\d+\.?\d*)\.pt")
    return [float(m[1]) for path in directory.iterdir() if (m := pattern.fullmatch(path.name))]


def _is_kept(score: float, others: list[float], best: float, options: Any) -> bool:
    """Tell whether fairseq keeps a score among the best: it is no worse than the worst of them."""
    if options["maximize_best_checkpoint_metric"]:
        return score >= min(others, default=best)
    return score <= max(others, default=best)
