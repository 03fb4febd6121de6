"""Usage: python results/norms/table.py WORK EPOCHS: the table of this directory, and its CSV.

WORK is that of run.sh beside this file. A run that failed is in the table with the last update
that it logged; one that is not there yet is left out.
"""

import csv
import json
import re
import sys
from pathlib import Path

from rbn_fairseq.report.runs import read_run

TID = ("tid_mean_last", "tid_var_last", "tid_mean_average", "tid_var_average")
TIMES = ("seconds_ratio", "ratio_q1", "ratio_q3")
HEADER = ("placement", "norm", "failed_at", "valid_nll", "bleu4", "brevity_penalty", *TID)


def read_times(work: Path, placement: str) -> dict[str, dict[str, str]]:
    """Read the settings' times, relative to layer norm's, of what benchmarks/updates.py wrote."""
    rows = json.loads((work / f"updates-{placement}.json").read_text(encoding="utf-8"))
    timed = [row for row in rows if row["bench"] == "train" and row["norm"] != "floor"]
    ratios = {row["norm"]: (row["ratio_to_layer"], *row["spread"]) for row in timed}
    return {
        norm: {name: f"{value:.5g}" for name, value in zip(TIMES, values, strict=True)}
        for norm, values in ratios.items()
    }


def measure(directory: Path, epochs: int) -> dict[str, object]:
    """Return the numbers of one run at the end of an epoch; those that there are."""
    if (directory / "failed").exists():
        updates = re.findall(r"num_updates=(\d+)", (directory / "train.log").read_text())
        return {"failed_at": updates[-1] if updates else 0}
    run = read_run(directory.name, directory)
    nll = run.valid.set_index("epoch")["nll_loss"]
    row: dict[str, object] = {"valid_nll": nll[epochs]}
    tid = run.tid.loc[run.tid["epoch"] == epochs, ["mean_tid", "var_tid"]]
    if len(tid):
        values = (*tid.iloc[-1], *tid.mean())
        row |= dict(zip(TID, values, strict=True))
    score = json.loads((directory / f"score{epochs}.json").read_text(encoding="utf-8"))["tokenised"]
    return row | {"bleu4": score["bleu"], "brevity_penalty": score["brevity_penalty"]}


def percent(row: dict[str, object], names: tuple[str, ...]) -> str:
    """Return TIDs as one cell; empty where TID is not defined."""
    return " / ".join(f"{100 * float(str(row[name])):.2f}" for name in names if name in row)


def cells(row: dict[str, object]) -> list[str]:
    """Return one line of the Markdown table."""
    if "failed_at" in row:
        quality = [f"failed at update {row['failed_at']}", "", "", ""]
    else:
        quality = [f"{row['valid_nll']:.3f}", f"{row['bleu4']:.2f} ({row['brevity_penalty']:.2f})"]
        quality += [percent(row, TID[:2]), percent(row, TID[2:])]
    low, high = (float(str(row[name])) for name in ("ratio_q1", "ratio_q3"))
    spread = f"{float(str(row['seconds_ratio'])):.2f} ({low:.2f} to {high:.2f})"
    return [str(row["placement"]), f"`{row['norm']}`", *quality, spread]


def main(work: Path, epochs: int) -> None:
    """Write the CSV beside this file and print the table."""
    rows = []
    for placement in ("post", "pre"):
        for norm, times in read_times(work, placement).items():
            directory = work / f"{placement}-{norm}"
            done = directory / f"checkpoint{epochs}.pt"
            if done.exists() or (directory / "failed").exists():
                names = {"placement": placement, "norm": norm}
                rows.append(names | measure(directory, epochs) | times)
    with (Path(__file__).parent / "norms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*HEADER, *TIMES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(
        "| | norm | valid nll, bits per token | BLEU4 (brevity penalty) | TID last layer, mean / "
        "variance % | TID average, mean / variance % | seconds per update, relative to LN |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print(f"| {' | '.join(cells(row))} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
