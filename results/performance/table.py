"""Prints rows of `rbn bench` as Markdown: python results/performance/table.py FILE.json..."""

import itertools
import json
import sys
from pathlib import Path


def cells(row):
    """Case, norm, threads, milliseconds, us a token, ratio or share with quartiles, x floor."""
    percent = row.get("share") is not None
    value = row["share"] if percent else row["ratio_to_layer"]
    spread = row["spread"]
    shape = "{:.2%}" if percent else "{:.3f}"
    ratio = "" if value is None else shape.format(value)
    if spread and spread[0] != spread[1]:
        ratio += " ({} to {})".format(*(shape.format(part) for part in spread))
    if row["ms"] is None:
        taken = f"{row['bytes'] / 2**20:,.0f} MiB"
    else:
        taken = f"{row['ms']:,.{3 if row['ms'] < 100 else 0}f} ms"
    per_token = f"{1000 * row['ms'] / row['tokens']:,.1f}" if row.get("tokens") else ""
    floor = "" if row["floor_ratio"] is None else f"{row['floor_ratio']:.2f}"
    about = [row["case"], row["norm"], str(row["threads"])]
    return [*about, taken, per_token, ratio, floor]


def main(paths):
    """Print a table for each bench of each file, and what it was measured on."""
    about, ratio = ["case", "norm", "threads"], "ratio or share (quartiles)"
    heads = [*about, "median", "us per real token", ratio, "x floor"]
    for path in map(Path, paths):
        rows = json.loads(path.read_text())
        for bench, group in itertools.groupby(rows, key=lambda row: (row["bench"], row["dtype"])):
            group = list(group)
            lines = [heads, ["---"] * len(heads), *map(cells, group)]
            used = [n for n in range(len(lines[0])) if any(line[n] for line in lines[2:])]
            floor = next((row["floor"] for row in group if row.get("floor")), None)
            print(f"\n`{path.stem}`: {', '.join(bench)}" + (f"; floor: {floor}" if floor else ""))
            print()
            for line in lines:
                print("| " + " | ".join(line[n] for n in used) + " |")
        print(f"\n{rows[0]['machine']}; {rows[0]['versions']}; {rows[0]['n']} rounds.")


if __name__ == "__main__":
    main(sys.argv[1:])
