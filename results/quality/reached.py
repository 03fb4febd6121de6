"""Prints when each training of a directory reached 3.95 bits, between validations of its log."""

import argparse
from pathlib import Path

from rbn_fairseq.report.runs import read_run

BITS = 3.95


def by_epoch(directory: Path) -> tuple[list[float], list[float], list[float]]:
    """Updates, minutes and validation nll (bits a token) at the end of each epoch."""
    run = read_run(directory.name, directory)
    train, valid = (
        rows.drop_duplicates("epoch", keep="last").set_index("epoch")
        for rows in (run.train, run.valid)
    )
    train = train.loc[valid.index]
    return list(train["update"]), list(train["minutes"]), list(valid["nll_loss"])


def reached(xs: list[float], nll: list[float]) -> float:
    """Where the line between two epochs' ends crosses `BITS` for the first time; nan if nowhere."""
    for x0, x1, y0, y1 in zip(xs, xs[1:], nll, nll[1:], strict=False):
        if y0 > BITS >= y1:
            return x0 + (x1 - x0) * (y0 - BITS) / (y0 - y1)
    return float("nan")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    print(f"{'run':<20} {'nll, epoch by epoch':<56} updates and minutes to {BITS} bits")
    for log in sorted(parser.parse_args().runs.glob("*/train.log")):
        updates, minutes, nll = by_epoch(log.parent)
        curve = " ".join(f"{value:.3f}" for value in nll)
        ends = f"{reached(updates, nll):.0f}, {reached(minutes, nll):.1f}"
        print(f"{log.parent.name:<20} {curve:<56} {ends}")
