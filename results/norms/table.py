"""Prints the table of this directory.

RUNS and TIMES, which benchmarks/updates.py wrote, are those of run.sh beside this file.
"""

import argparse
import json
from pathlib import Path

import pandas as pd

from rbn_fairseq.report.runs import Run, read_run

COLUMNS = {
    "nll": "validation nll", "gap": "minus LN (`pre_`: Pre-Norm LN)", "training": "training nll",
    "loses": "inference loses", "tid": "mean TID %", "bleu": "BLEU4", "brevity": "brevity",
    "time": "time an update, of LN's",
}  # fmt: skip


def measure(run: Run) -> dict[str, float]:
    """Return what is known of a run's end, by column; nothing of one that diverged before it."""
    if (
        not len(run.valid)
        or run.valid["update"].iloc[-1] < run.config["optimization"]["max_update"]
    ):
        return {}
    row = {"nll": run.valid["nll_loss"].iloc[-1], "training": run.train["nll_loss"].iloc[-1]}
    if len(run.tid):
        row["tid"] = 100 * run.tid.loc[run.tid["epoch"] == run.last_epoch, "mean_tid"].mean()
    if len(run.cost):
        row["loses"] = run.cost.loc[run.cost["statistics"] == "running", "cost"].iloc[-1]
    if score := run.scores.get("tokenised"):
        row |= {"bleu": score["bleu"], "brevity": score["brevity_penalty"]}
    return row


def main(runs: Path, times: Path) -> None:
    """Print a row a setting, the best first, and its seeds one by one."""
    rows = {}
    for directory in sorted(runs.iterdir()):
        name, _, seed = directory.name.rpartition("-seed")
        rows[name, int(seed)] = measure(read_run(directory.name, directory))
    table = pd.DataFrame(rows).T.rename_axis(["norm", "seed"])
    pairs = [("pre_ln" if name.startswith("pre_") else "ln", seed) for name, seed in table.index]
    table["gap"] = table["nll"] - table["nll"].reindex(pairs).to_numpy()
    if times.exists():
        timed = [row for row in json.loads(times.read_text()) if row["bench"] == "train"]
        ratios = pd.Series({row["norm"]: row["ratio_to_layer"] for row in timed})
        table["time"] = ratios.reindex(table.index, level="norm")
    table = table.reindex(columns=list(COLUMNS)).rename(columns=COLUMNS)
    table = table.sort_values("validation nll").dropna(axis="columns", how="all")
    shown = table.map("{:.3f}".format).where(table.notna(), "").reset_index()
    print(shown.to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("times", type=Path)
    main(**vars(parser.parse_args()))
