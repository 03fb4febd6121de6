"""Rows of benchmarks as Markdown: python benchmarks/table.py FILE.json..."""

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rounds import Row


def _cells(row: Row) -> dict[str, str]:
    """Return a row's cells by heading; some committed rows have a ``share`` in place of a ratio."""
    ms, share, spread = row.get("ms"), row.get("share"), row.get("spread")
    form, value = ("{:.3f}", row["ratio_to_layer"]) if share is None else ("{:.2%}", share)
    ratio = "" if value is None else form.format(value)
    if spread and spread[0] != spread[1]:
        ratio += " ({} to {})".format(*map(form.format, spread))
    if ms is None:
        median = f"{row['bytes'] / 2**20:,.0f} MiB"
    else:
        median = f"{ms:,.{3 if ms < 100 else 0}f} ms"
    return {
        "case": row["case"],
        "norm": row["norm"],
        "threads": str(row["threads"]),
        "median": median,
        "us per real token": f"{1000 * ms / row['tokens']:,.1f}" if row.get("tokens") else "",
        "ratio or share (quartiles)": ratio,
    }


def markdown(rows: Sequence[Row], name: str = "") -> str:
    """Return a table for each kind of measurement and dtype, and what they were measured on."""
    parts = []
    for kind, group in itertools.groupby(rows, key=lambda row: (row["bench"], row["dtype"])):
        parts.append(f"`{name}`: " * bool(name) + ", ".join(kind))
        table = pd.DataFrame(map(_cells, group))
        used = table.loc[:, table.ne("").any()]
        parts.append(used.to_markdown(index=False, disable_numparse=True))
    first = rows[0]
    return "\n\n".join([*parts, f"{first['machine']}; {first['versions']}; {first['n']} rounds."])


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        rows = json.loads(path.read_text(encoding="utf-8"))
        sys.stdout.write(markdown(rows, path.stem) + "\n\n")
