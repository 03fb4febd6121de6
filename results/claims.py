"""Prints the numbers of docs/evidence.md that no report draws, from the committed runs.

Usage: python results/claims.py
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from rbn_fairseq.report.runs import read_run

RESULTS = Path(__file__).resolve().parent
INFERENCE = ["running-global", "running"]  # what anyone infers with: the first that was measured


def lines(run: Path, name: str) -> pd.DataFrame:
    """A file of measurements, newest last."""
    return pd.read_json(run / f"{name}.jsonl", lines=True)


def runs(pattern: str) -> list[Path]:
    """Runs of a pattern below results/, by name."""
    return sorted(RESULTS.glob(pattern))


def nll(run: Path, part: str = "valid") -> pd.Series:
    """Loss in bits a token at the end of each epoch; part is train or valid."""
    rows = getattr(read_run(run.name, run), part)
    return rows.drop_duplicates("epoch", keep="last").set_index("epoch")["nll_loss"]


def tid(run: Path) -> pd.DataFrame:
    """Average and last-norm TID in % by epoch, on batches as trained."""
    frame = lines(run, "tid")
    by_epoch = frame.groupby("epoch")[["mean_tid", "var_tid"]]
    parts = {"average": by_epoch.mean(), "first": by_epoch.first(), "last": by_epoch.last()}
    return 100 * pd.concat(parts, axis="columns")


def costs(run: Path) -> pd.Series:
    """What ordinary inference loses against each batch's own statistics, by epoch."""
    frame = lines(run, "cost")
    frame = frame.assign(epoch=frame["checkpoint"].str.extract(r"^checkpoint(\d+)\.pt"))
    frame = frame.dropna(subset="epoch").astype({"epoch": int})  # without averages
    rows = {}
    for epoch, rest in frame.groupby("epoch"):
        losses = rest.set_index("statistics")["nll"]
        name = next(name for name in INFERENCE if name in losses)
        rows[epoch] = losses[name] - losses["batch"]
    return pd.Series(rows)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's correlation."""
    return float(stats.spearmanr(one, other).statistic)


def bleu(path: Path) -> tuple[float, float]:
    """BLEU4 of tokenised text, and the same without its brevity penalty."""
    score = json.loads(path.read_text())["tokenised"]
    return score["bleu"], score["bleu"] / score["brevity_penalty"]


def print_bleu() -> None:
    """Precision of n-grams, and paired tests over the seeds of results/ladder."""
    print("BLEU4, and BLEU4 / brevity penalty (precision of n-grams)")
    kinds = {
        "LN": "ln-seed{}/score",
        "BN, of all lengths": "bn-seed{}/global",
        "BN, bins": "bn-seed{}/score",
        "BN, bins recalibrated": "bn-seed{}/bins16",
        "RBN": "rbn-seed{}/score",
    }
    scores = {}
    for kind, name in kinds.items():
        pairs = [bleu(RESULTS / f"ladder/runs/{name.format(seed)}.json") for seed in (1, 2, 3)]
        scores[kind] = np.array(pairs)
        both = [f"{column.mean():.2f} ± {column.std(ddof=1):.2f}" for column in scores[kind].T]
        print(f"  ladder, {kind:<22} {both[0]}, precision {both[1]}")
    for one, other in (
        ("BN, bins", "BN, of all lengths"),
        ("BN, bins", "LN"),
        ("BN, bins recalibrated", "LN"),
    ):
        for column, what in enumerate(("BLEU4", "precision")):
            gaps = scores[one][:, column] - scores[other][:, column]
            p = stats.ttest_1samp(gaps, 0).pvalue
            print(
                f"  {what} of {one} - {other}: {gaps.mean():.2f} ± {gaps.std(ddof=1):.2f}, "
                f"paired t-test p = {p:.3f}"
            )
    for name in ("long-ln-seed{}/score", "long-bn-seed{}/global", "long-bn-seed{}/score"):
        for seed in (1, 2):
            path = RESULTS / f"longer/runs/{name.format(seed)}.json"
            score, precision = bleu(path)
            print(
                f"  longer, {path.parent.name}/{path.name}: {score:.2f}, precision {precision:.1f}"
            )


def print_tid() -> None:
    """TID of the last norm under RBN; TID and what inference loses, over checkpoints."""
    print("Variance TID of the last batch norm at the last epoch, RBN and BN, %")
    pairs = [(f"ladder/runs/{{}}-seed{seed}", "bn", "rbn") for seed in (1, 2, 3)]
    pairs += [
        ("longer/runs/long-{}-seed1", "bn", "rbn"),
        ("iwslt14_subset/runs/{}", "bn", "rbn_official"),
    ]
    for pattern, bn, rbn in pairs:
        values = [tid(RESULTS / pattern.format(name)).iloc[-1] for name in (rbn, bn)]
        text = " / ".join(f"{value['last', 'var_tid']:.2f}" for value in values)
        print(f"  {pattern.format(rbn)}: {text}")
    print("Average and last-norm mean TID at the last epoch, %: RBN behind RMS norm, and RBN")
    for name in ("hybrids/runs/hybrid-rms-seed1", "ladder/runs/rbn-seed1"):
        last = tid(RESULTS / name).iloc[-1]
        print(f"  {name}: {last['average', 'mean_tid']:.2f}, {last['last', 'mean_tid']:.2f}")
    rows = []
    for run in [
        *runs("ladder/runs/*bn-seed*"),
        *runs("longer/runs/*bn-seed*"),
        *runs("iwslt14_subset/runs/rbn*"),
        *runs("length_bins/runs/bn"),  # the training of iwslt14_subset/runs/bn, measured by length
        *runs("hybrids/runs/*"),
        *runs("rbn_bins/runs/*"),
        *runs("target/runs/*"),
        *runs("wider/runs/*"),
        *(run for run in runs("sampler/runs/*") if not re.search("-(pre|tatoeba)-", run.name)),
    ]:
        if (run / "cost.jsonl").is_file():
            cost, values = costs(run), tid(run)
            epoch = cost.index.max()
            settings = json.loads((run / "run.json").read_text())["config"]["criterion"]
            free = (
                not settings["rbn_mean_weight"]
                and not settings["rbn_std_weight"]
                and settings.get("rbn_target_tid") is None  # the option is gone
            )
            of_sampler = run.parent.parent.name == "sampler"
            rows.append({"free": free, "sampler": of_sampler, "cost": cost[epoch]} | {
                f"{kind} {name} TID": values.loc[epoch, (name, column)]
                for name in ("average", "first", "last")
                for kind, column in (("mean", "mean_tid"), ("variance", "var_tid"))
            })  # fmt: skip
    every = pd.DataFrame(rows)
    for frame, where in ((every, "with"), (every[~every["sampler"]], "without")):
        print(
            f"Spearman of what inference loses with TID, {len(frame)} last Post-Norm checkpoints, "
            f"{where} those of results/sampler; of the {frame['free'].sum()} without a penalty; of "
            "the others"
        )
        for column in frame.columns[3:]:
            rhos = [
                spearman(part["cost"], part[column])
                for part in (frame, frame[frame["free"]], frame[~frame["free"]])
            ]
            print(f"  {column:<24} {'; '.join(f'{rho:.2f}' for rho in rhos)}")


def print_gap() -> None:
    """How the gap to LN, and what inference loses, go with TID in single trainings."""
    print(
        "Spearman over epochs, of BN's gap to LN (ordinary inference) and of what inference loses"
    )
    gaps = {}
    for seed in (1, 2):
        run = RESULTS / f"longer/runs/long-bn-seed{seed}"
        frame = lines(run, "cost").query("statistics == 'running-global'")
        epochs = frame["checkpoint"].str.extract(r"(\d+)")[0].astype(int)
        losses = pd.Series(frame["nll"].values, index=epochs.values).sort_index()
        gaps[run] = losses - nll(RESULTS / f"longer/runs/long-ln-seed{seed}")
    plain = RESULTS / "iwslt14_subset/runs"
    gaps[plain / "bn"] = nll(plain / "bn") - nll(plain / "ln")
    for run, gap in gaps.items():
        print(f"  {run.name}, {len(gap)} epochs; gap and epoch {spearman(gap, gap.index):.2f}")
        cost = costs(run).reindex(gap.index)
        for kind in (("last", "var_tid"), ("average", "var_tid"), ("average", "mean_tid")):
            values = tid(run).loc[gap.index, kind]
            print(
                f"    {' '.join(kind):<17} gap {spearman(gap, values):.2f} (from epoch 3 on "
                f"{spearman(gap.loc[3:], values.loc[3:]):.2f}, of changes "
                f"{spearman(gap.diff()[1:], values.diff()[1:]):.2f})"
                + (f", loss {spearman(cost, values):.2f}" if cost.notna().all() else "")
            )


def print_conditioning() -> None:
    """C_50 of the residual stream before the last encoder layer, late in results/longer."""
    print("C_50 at the last measured update of results/longer")
    for run in runs("longer/runs/*"):
        frame = lines(run, "conditioning").query("layer == 4")
        last = frame[frame["update"] == frame["update"].max()].iloc[-1]
        print(f"  {run.name}: update {last['update']}, {last['c_50']:.1f}")


def print_samplers() -> None:
    """BN - LN on fairseq's and on mixed batches; mixed batches as a head start in epochs."""
    ln, bn = RESULTS / "ladder/runs/ln-seed1", RESULTS / "ladder/runs/bn-seed1"
    mixed = {norm: RESULTS / f"mixing/runs/{norm}-mixing16-seed1" for norm in ("ln", "bn")}
    print("BN - LN at epoch 2, training")
    gaps = [
        (nll(RESULTS / f"ladder/runs/bn-seed{s}", "train")
         - nll(RESULTS / f"ladder/runs/ln-seed{s}", "train"))[2]
        for s in (1, 2, 3)
    ]  # fmt: skip
    print(f"  fairseq's batches: {', '.join(f'{gap:.3f}' for gap in gaps)}")
    print(f"  K = 16: {(nll(mixed['bn'], 'train') - nll(mixed['ln'], 'train'))[2]:.3f} (seed 1)")
    print("Where fairseq's batches reach the loss of K = 16 at epoch 2 (interpolated), epochs")
    goals = {"ln": nll(mixed["ln"])[2]}
    goals["bn"] = json.loads((mixed["bn"] / "global.jsonl").read_text().splitlines()[-1])["nll"]
    for norm, run in (("ln", ln), ("bn", bn)):
        curve = nll(run)
        if norm == "bn":
            frame = lines(run, "cost").query("statistics == 'running-global'")
            curve = pd.Series(frame["nll"].values, index=[1, 2, 3, 4])
        for (x0, y0), (_, y1) in pairwise(curve.items()):
            if y0 > goals[norm] >= y1:
                print(f"  {norm}: {goals[norm]:.3f} at {x0 + (y0 - goals[norm]) / (y0 - y1):.2f}")


def print_last_batches() -> None:
    """What running statistics lose by remembering the last batches, weights as saved."""
    print("nll above that of equal weights; random orders: mean, deviation, range, r with length")
    for run in runs("sampler/runs/*/last_batches.jsonl"):
        frame = pd.read_json(run, lines=True).set_index("statistics")
        saved = frame["nll"]["as saved"] - frame["nll"]["equal weights"]
        print(f"  {run.parent.name}: running statistics {saved:+.4f}")
        for momentum, orders in frame.groupby("momentum"):
            training, lag = orders["lag"]["order: training"], orders["lag"].drop("order: training")
            r = lag.corr(orders["length"].drop("order: training"))
            print(
                f"    momentum {momentum}: {lag.mean():+.3f} ± {lag.std():.3f}, {lag.min():+.3f} "
                f"to {lag.max():+.3f}, r {r:.2f}; training's {training:+.4f}"
            )


if __name__ == "__main__":
    for part in (
        print_bleu, print_tid, print_gap, print_conditioning, print_samplers, print_last_batches,
    ):  # fmt: skip
        part()
