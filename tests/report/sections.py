"""Sections as long and as ragged as those of real runs."""

import math

import matplotlib
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Cell, Figure, Section, Sentences, Table

COLOURS = {"LN": "#0072B2", "BN": "#D55E00", "RBN": "#009E73"}
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
}
_RUNS = (
    # run, norm, seed, valid nll, BLEU, mean TID, variance TID, minutes
    ("post-ln-seed1", "LN", 1, 4.318, 35.41, None, None, 151.2),
    ("post-ln-seed2", "LN", 2, 4.325, 35.28, None, None, 150.8),
    ("post-bn-seed1", "BN", 1, 4.471, 34.02, 1.48, 10.62, 171.9),
    ("post-bn-seed2", "BN", 2, 4.466, 9.7, 1.55, 10.11, 172.5),
    ("post-rbn-seed1", "RBN", 1, 4.309, 35.46, 0.81, 6.68, 173.0),
    ("post-rbn-lambda0.01-nu0.1-seed1", "RBN", 1, 4.31, None, 0.79, 6.9, 90.1),
    ("pre-bn@0-3:layer", "BN", 1, 4.402, 34.77, 3.41, 4.63, 170.7),
    ("pre_rbn", "RBN", 1, 4.3, None, None, None, None),
)
_COMMAND = "bash scripts/iwslt14/evaluate.sh rbn pre 1 --data-bin data-bin/iwslt14.de-en"


def _number(value, digits, note=""):
    return Cell("", note=note) if value is None else Cell(f"{value:.{digits}f}", value)


def _summary():
    rows = []
    for run, norm, seed, nll, bleu, mean, variance, minutes in _RUNS:
        gap = f"Not scored yet: `{_COMMAND}`." if bleu is None else ""
        tid = "Layer norm has no TID." if norm == "LN" else "Not measured: `rbn tid`."
        rows.append(
            (
                Cell(run, colour=COLOURS[norm]), Cell(norm), Cell(str(seed), seed),
                _number(nll, 3), _number(bleu, 1, gap),
                _number(mean, 2, tid if mean is None else ""),
                _number(variance, 2, tid if variance is None else ""),
                _number(minutes, 1), _number(-1.5 if norm == "BN" else None, 1),
            )
        )  # fmt: skip
    columns = (
        "run", "norm", "seed", "valid loss, bits per token", "BLEU", "mean TID, last layer, %",
        "variance TID, last layer, %", "training time, minutes", "gap to LN, BLEU",
    )  # fmt: skip
    return Table(
        "summary", "Runs", columns, tuple(rows),
        ("BLEU is sacreBLEU’s, `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0`.",),
    )  # fmt: skip


def _table_1():
    ours = (("Post-LN", 35.3, 35.5), ("Post-BN", 34.0, 34.0), ("Pre-LN", None, 35.5))
    rows = tuple(
        (
            Cell(row),
            Cell("", note="No run: `rbn train … --encoder-normalize-before`.")
            if mine is None
            else Cell(f"{mine:.1f} ± 0.1", mine),
            Cell(str(paper), paper, paper=True),
        )
        for row, mine, paper in ours
    )
    return Table("table-1", "Table 1: BLEU of LN and BN", ("model", "IWSLT14", "paper"), rows)


def _correlation():
    rows = (
        (Cell("these runs"), Cell("6", 6), Cell("0.83", 0.83), Cell("0.05 to 0.98")),
        (
            Cell("the paper’s tables", paper=True), Cell("20", 20, paper=True),
            Cell("0.71", 0.71, paper=True), Cell("0.39 to 0.88", paper=True),
        ),
        (
            Cell("a group of 3"), Cell("3", 3), Cell("∞", math.inf),
            Cell("none, for which four are needed: `rbn train … --norm-encoder batch --seed 4`"),
        ),
    )  # fmt: skip
    columns = ("settings", "n", "Spearman", "95 % interval")
    return Table("correlation", "TID and the gap to LN", columns, rows)


def _canvas(titles, size):
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=size, layout="constrained")
        for shift, (axes, title) in enumerate(
            zip(canvas.subplots(1, len(titles), squeeze=False)[0], titles, strict=True)
        ):
            for number, (norm, colour) in enumerate(COLOURS.items()):
                heights = [(3 + number + shift) * math.exp(-x / 9) + 4 for x in range(30)]
                axes.plot(range(30), heights, color=colour, marker="o", markersize=3, label=norm)
            axes.set(title=title, xlabel="epoch", ylabel="bits per token")
        handles, labels = axes.get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3)
        return canvas


def _map():
    with matplotlib.rc_context(_STYLE | {"axes.grid": False}):
        canvas = Canvas(figsize=(5.6, 4), layout="constrained")
        axes = canvas.subplots()
        image = axes.imshow([[math.sin(x / 4) * y for x in range(20)] for y in range(12)])
        canvas.colorbar(image, ax=axes, label="deviation of the variance, %")
        axes.set(title="Depth and epoch", xlabel="epoch", ylabel="batch norm, from the input")
        return canvas


def _figure(name, title, draw, notes=()):
    caption = (
        "Negative log-likelihood in bits per target token, dropout off, after each epoch. Thin "
        "lines are single seeds, bold ones their mean. The paper’s batch norm falls behind layer "
        "norm after epoch 7 or 8; its model and data are the same as ours only on IWSLT14."
    )
    header, rows = ("run", "epoch", "nll_loss"), (("LN", 1, 5.25), ("BN", 2, 0.1 + 0.2))
    return Figure(name, title, caption, draw, header, rows, notes)


def make_sections():
    """Five sections: 3 tables, 6 figures of several shapes, two sentences."""
    small = (4.6, 3.6)
    curves = (
        _figure("figure-1", "Figure 1: training dynamics", lambda: _canvas(
            ["Training loss", "Validation loss", "BLEU of the validation set"], (13.8, 3.9))),
        _figure("figure-2-top", "Figure 2, top: deviation of the batch statistics through training",
                lambda: _canvas(["Relative deviation"], small)),
        _figure("figure-2-map", "Figure 2, bottom: deviation by depth and epoch", _map),
        _figure("figure-4", "Figure 4: TID", lambda: _canvas(["Mean TID"], small),
                ("No run of Pre-Norm RBN: `rbn train data-bin/iwslt14.de-en --arch "
                 "rbn_transformer_iwslt_de_en --norm-encoder batch --rbn-mean-weight 60`.",)),
        _figure("figure-6", "Figure 6: conditioning of the layers’ input",
                lambda: _canvas(["Layer 2", "Layer 4"], (9.2, 3.6))),
        _figure("penalty", "Penalty", lambda: _canvas(["Penalty"], small)),
    )  # fmt: skip
    sentence = {
        "source": "Zum Öffnen <b>doppelklicken</b> Sie auf die Datei & warten.",
        "reference": "Double-click the file to open it, & wait.",
        "LN": "To open, double-click the file and wait.",
        "BN": "Double-click to open the file.",
    }
    return (
        Section("Runs", "Seven of 8 runs ended.\n\nWhat is read:\n- `train.log`\n- `tid.jsonl`",
                (_summary(),)),
        Section("Training", "Curves of LN, BN and RBN.", curves[:4]),
        Section("Layers", "Two panels, and a lone one.", curves[4:]),
        Section("The paper’s tables", "", (_table_1(), _correlation())),
        Section("Translations", "", (Sentences("", (sentence, sentence), COLOURS),)),
    )  # fmt: skip


ABOUT = (
    ("text", "LibreOffice’s help, German to English, 22,000 pairs of sentences"),
    ("model", "`rbn_transformer_tiny`, Post-Norm, 2 + 2 layers, width 128"),
    ("versions", "rbn_fairseq 0.5, torch 2.13.0, ve-fairseq 0.12.3, sacrebleu 2.6.0"),
)
