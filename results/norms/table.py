"""Usage: python results/norms/table.py WORK EPOCHS: the table of this directory, and its CSV."""

import csv
import json
import sys
from pathlib import Path

from rbn_fairseq.report.runs import read_run

HEADER = (
    "placement", "norm", "valid_nll", "bleu4", "brevity_penalty", "tid_mean_last", "tid_var_last",
    "tid_mean_average", "tid_var_average", "seconds_ratio", "first_quartile", "third_quartile",
)  # fmt: skip


def read_times(work: Path, placement: str) -> dict[str, dict[str, str]]:
    """Read what `rbn bench updates` wrote, by setting."""
    path = work / f"updates-{placement}.csv"
    with path.open(encoding="utf-8") as file:
        return {row["setting"]: row for row in csv.DictReader(file)}


def row(directory: Path, epochs: int, times: dict[str, str]) -> tuple[object, ...]:
    """Return the numbers of one run at the end of an epoch; empty where there are none."""
    placement, _, name = directory.name.partition("-")
    run = read_run(name, directory)
    nll = next((v.nll_loss for v in run.validations if v.epoch == epochs), "")
    tid = next((point for point in run.tid if point.epoch == epochs), None)
    path = directory / f"score{epochs}.json"
    score = json.loads(path.read_text(encoding="utf-8"))["tokenised"] if path.exists() else {}
    values = (
        (tid.last.mean_tid, tid.last.var_tid, tid.average.mean_tid, tid.average.var_tid)
        if tid
        else ("",) * 4
    )
    return (
        placement, name, nll, score.get("bleu", ""), score.get("brevity_penalty", ""), *values,
        times["ratio"], times["first_quartile"], times["third_quartile"],
    )  # fmt: skip


def cell(value: object, form: str) -> str:
    """Format a number; nothing where there is none."""
    return "" if value == "" else format(float(str(value)), form)


def main(work: Path, epochs: int) -> None:
    """Write the CSV beside this file and print the table."""
    rows = []
    for placement in ("post", "pre"):
        times = read_times(work, placement)
        rows += [row(work / f"{placement}-{name}", epochs, times[name]) for name in times]
    with (Path(__file__).parent / "norms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(rows)
    print(
        "| | norm | valid nll, bits per token | BLEU4 | TID last layer, mean / variance % "
        "| TID average, mean / variance % | seconds per update, relative to LN |"
    )
    print("|---|---|---|---|---|---|---|")
    for placement, name, nll, bleu, _, *tid, ratio, low, high in rows:
        pairs = [" / ".join(cell(v and 100 * float(v), ".2f") for v in part if v != "")
                 for part in (tid[:2], tid[2:])]  # fmt: skip
        spread = f"{cell(ratio, '.3f')} ({cell(low, '.3f')} to {cell(high, '.3f')})"
        cells = [placement, name, cell(nll, ".3f"), cell(bleu, ".2f"), *pairs, spread]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
