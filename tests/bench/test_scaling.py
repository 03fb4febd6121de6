"""How cost grows: what the sweeps vary, collectives, the figure."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread

from rbn_fairseq.bench import scaling
from rbn_fairseq.bench.figure import draw_scaling
from rbn_fairseq.bench.norms import Conditions
from rbn_fairseq.bench.rows import Row
from rbn_fairseq.bench.scaling import SWEEPS, sweep
from rbn_fairseq.report.figures.style import norm_colours


def row(norm, ms, case="made up"):
    same = {"device": "cpu", "threads": 1, "dtype": "float32", "bench": "norm", "n": 1}
    return Row(norm=norm, ms=ms, case=case, **same)


@pytest.mark.parametrize(
    "what, values, sizes, ms",
    [  # sentences, channels, norms one after another
        ("tokens", (128, 256), [(4, 16, 3), (8, 16, 3)], [5, 5]),
        ("channels", (4, 8), [(64, 4, 3), (64, 8, 3)], [5, 5]),
        ("layers", (4, 8), [(64, 16, 8), (64, 16, 16)], [40, 80]),  # of all norms, two a layer
    ],
)
def test_one_thing_grows(monkeypatch, what, values, sizes, ms):
    seen = []

    def time(case, how, label):
        (lengths,) = case.batches
        seen.append((len(lengths), how.channels, how.depth))
        return [row("layer", 5.0, case.name)]

    monkeypatch.setattr(scaling, "time_norms", time)
    found = sweep(what, values, 2048, Conditions(["layer"], channels=16, depth=3))
    assert seen == sizes
    assert list(found) == list(values)
    assert [rows[0].ms for rows in found.values()] == ms
    first = found[values[0]][0]
    tokens, channels, _ = sizes[0]
    assert first.bench == "scaling"
    assert first.case == f"{what}-{values[0]}/{32 * tokens}x{channels}"


def test_processes_share_statistics_in_one_collective_each_way():
    how = Conditions(["layer", "batch"], channels=16, depth=1, rounds=1)
    (rows,) = sweep("processes", (2,), 64, how).values()
    assert [row.norm for row in rows] == ["layer", "batch", "floor"]
    assert [row.collectives for row in rows] == [(0, 0), (1, 1), None]
    assert all(row.ms > 0 for row in rows)


def test_the_figure_shows_all_times_on_logarithmic_axes(tmp_path, monkeypatch):
    canvases = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda canvas, *a, **k: (canvases.append(canvas), save(canvas, *a, **k))
    )
    found = {
        1024: [row("layer", 1.0), row("batch", 2.0), row("floor", 0.5)],
        4096: [row("layer", 4.0), row("batch", 7.0), row("floor", 2.0)],
    }
    path = tmp_path / "growth.png"
    draw_scaling(path, SWEEPS["tokens"], found)
    assert imread(path).shape[2] == 4
    (axes,) = canvases[0].axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "tokens" in axes.get_xlabel() and "milliseconds" in axes.get_ylabel()
    lines = {line.get_label(): line for line in axes.get_lines()}
    shown = {name: list(zip(*line.get_data(), strict=True)) for name, line in lines.items()}
    assert shown["LN"] == [(1024, 1.0), (4096, 4.0)] and shown["BN"] == [(1024, 2.0), (4096, 7.0)]
    assert list(lines.pop("floor: memory moved").get_ydata()) == [0.5, 2.0]
    colours = {name: to_hex(line.get_color()) for name, line in lines.items()}
    assert colours == {name: to_hex(c) for name, c in norm_colours(["LN", "BN"]).items()}
