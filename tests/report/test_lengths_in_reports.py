"""What a report shows of lengths: TID given the length, and length-conditional statistics."""

import pytest
from run_directories import WAYS, configuration, norm, tid_line, write_lines, write_run

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.figures.style import norm_colours
from rbn_fairseq.report.runs import read_run

EPOCHS = (1, 2, 3)


def blocks_of(*directories):
    runs = [read_run(directory.name, directory) for directory in directories]
    return {block.name: block for section in sections(runs) for block in section.blocks}


def columns_of(table, row=0):
    return dict(zip(table.columns, (cell.text for cell in table.rows[row]), strict=True))


def write(directory, kind="BN", seed=1, **run):
    return write_run(directory, configuration(seed, **norm(kind)), **run)


def given_length(line, share=0.25):
    return line | {
        "mean_conditional_tid": share * line["mean_tid"],
        "var_conditional_tid": 2 * share * line["var_tid"],
        "length_groups": 16,
    }


def tid_lines(epochs=(0, *EPOCHS)):
    return [tid_line(epoch, n, 0.02 * (n + 1), 0.04 * (n + 1)) for epoch in epochs for n in (0, 1)]


@pytest.fixture
def bn(tmp_path):
    return write(tmp_path / "bn")


def test_tid_given_the_length_in_tables(bn):
    write_lines(bn / "tid.jsonl", map(given_length, tid_lines()))
    found = blocks_of(bn)
    row = columns_of(found["summary"])
    assert row["mean TID given length, average, %"] == "0.75"  # a quarter of (2 + 4) / 2
    assert row["variance TID given length, average, %"] == "3.00"
    assert any("batches of like length" in note for note in found["summary"].notes)
    for name, number in (("table1", 0), ("table4", 0)):  # of the last layer
        row = columns_of(found[name], number)
        assert row["mean TID given length, %"] == "1.00"
        assert row["variance TID given length, %"] == "4.00"
        assert row["mean TID, %"] == "4.00" and row["n"] == "1"
        assert any("batches of like length" in note for note in found[name].notes)


def test_tid_given_the_length_in_figures(bn):
    write_lines(bn / "tid.jsonl", map(given_length, tid_lines()))
    figure = blocks_of(bn)["figure4"]
    values = [row[-2:] for row in figure.rows if row[5] == "average var_conditional_tid"]
    assert values == [(epoch, pytest.approx(3)) for epoch in (0, *EPOCHS)]
    titles = [axes.get_title(loc="left") for axes in figure.draw().axes]
    assert titles == [
        f"Post-Norm: {kind} TID{given}" for given in ("", " given length")
        for kind in ("mean", "variance")
    ]  # fmt: skip
    assert "like length" in figure.caption


def test_where_tid_comes_from(bn):
    ways = {"as-trained": 0.5, "random": 0.9, "permuted": None}
    write_lines(bn / "tid_batching.jsonl", [
        (given_length(line, share) if share else line) | {"batching": way}
        for way, share in ways.items() for line in tid_lines(epochs=(3,))
    ])  # fmt: skip
    figure = blocks_of(bn)["batching"]
    assert figure.header[-1] == "given_length_squared_percent"
    squares = [row[-1] for row in figure.rows]  # mean: halves of 2 and 4; variance: of 4 and 8
    assert squares == pytest.approx([1, 4, 16, 64])
    (dashed,) = (line for line in figure.draw().axes[0].get_lines() if "length" in line.get_label())
    assert sorted({y for y in dashed.get_ydata() if y == y}) == pytest.approx([1, 4])
    assert "Dashed" in figure.caption


def test_records_of_older_versions(bn):
    write_lines(bn / "tid.jsonl", tid_lines())
    lines = [line | {"batching": way} for way in ("as-trained", "random") for line in tid_lines()]
    write_lines(bn / "tid_batching.jsonl", lines)
    write_lines(bn / "cost.jsonl", [
        {"update": 300, "statistics": way, "nll": 4 + it, "cost": it} for way, it in WAYS.items()
    ])  # fmt: skip
    found = blocks_of(bn)
    assert "cost_by_epoch" not in found
    for block in found.values():
        words = [block.title, *block.notes, *(block.columns if hasattr(block, "columns") else ())]
        if isinstance(block, Figure):
            words += [block.caption, *block.header]
            assert not any("length" in axes.get_title(loc="left") for axes in block.draw().axes)
        text = " ".join(words).lower()
        assert "given" not in text.split() and "population of batches" not in text, block.name
    assert found["batching"].header[-1] == "independent_squared_percent"
    assert "length-conditional" not in found["cost"].caption.lower()
    assert "Validation loss by way of normalising" not in str(found.get("not_measured"))


def test_bins_of_lengths_are_another_norm(tmp_path):
    changes = {"model.norm_batch_length_bins": 16}
    of_norm = norm("BN") | changes
    write(tmp_path / "bn", tid=(0.02, 0.1))
    for name, more in (("bins", {}), ("four", {"model.norm_batch_length_bins": 4}), ("rbn", {})):
        settings = (norm("RBN") | changes if name == "rbn" else of_norm) | more
        write_run(tmp_path / name, configuration(**settings), tid=(0.02, 0.1))
    write_run(tmp_path / "ln", configuration(**norm("LN") | changes))  # has no batch norm
    table = blocks_of(*(tmp_path / name for name in ("bn", "bins", "four", "rbn", "ln")))["summary"]
    norms = {columns_of(table, n)["run"]: columns_of(table, n)["norm"] for n in range(5)}
    assert norms == {
        "bn": "BN", "rbn": "RBN by length", "ln": "LN",
        "bins": "BN by length (norm_batch_length_bins 16)",
        "four": "BN by length (norm_batch_length_bins 4)",
    }  # fmt: skip


def test_tables_of_tid_have_runs_with_bins(tmp_path):
    bins = configuration(**norm("BN") | {"model.norm_batch_length_bins": 16})
    write_run(tmp_path / "bins", bins, tid=(0.02, 0.1), nll=(5.0, 3.75), bleu=28.5)
    write(tmp_path / "ln", "LN", nll=(5.0, 4.0), bleu=30.0)
    alone = blocks_of(tmp_path / "bins", tmp_path / "ln")
    first, fourth = columns_of(alone["table1"]), columns_of(alone["table4"])
    assert first[""] == "Post-Norm, by length, here" and first["BN - LN, BLEU"] == "-1.50"
    assert fourth[""] == "Post-BN by length" and fourth["variance TID, %"] == "10.00"
    assert [row[0].text for row in alone["table4"].rows[:2]] == ["Post-BN by length", "Post-RBN"]
    write(tmp_path / "bn", tid=(0.03, 0.2))
    both = blocks_of(tmp_path / "bins", tmp_path / "bn")
    assert columns_of(both["table1"])[""] == "Post-Norm, here"
    assert [columns_of(both["table4"], n)["mean TID, %"] for n in (0, 1)] == ["3.00", "2.00"]


def test_the_command_of_what_is_missing_has_bins(tmp_path):
    changes = norm("RBN") | {"model.norm_batch_length_bins": 8}
    write_run(tmp_path / "rbn", configuration(data="data/mine", **changes))
    write_run(tmp_path / "ln", configuration(data="data/mine", **norm("LN", "Pre-Norm")))
    third = blocks_of(tmp_path / "rbn", tmp_path / "ln")["table3"]
    (missing,) = (cell.note for row in third.rows for cell in row if "length-bins" in cell.note)
    for option in (
        "--norm-encoder batch", "--rbn-mean-weight", "--norm-batch-length-bins 8",
        "--encoder-normalize-before",
    ):  # fmt: skip
        assert option in missing


NLL = {"ln": ((5.0, 4.0, 3.0), (5.5, 4.25, 3.5)), "bn": ((5.0, 3.75, 3.5), (5.25, 3.5, 3.75))}
LESS = {"running": 0, "length-conditional": 0.5, "batch": 0.75, "pooled": 0.25}


def cost_lines(nll, ways=LESS, update=lambda epoch: 100 * epoch):
    return [
        {"update": update(epoch), "statistics": way, "nll": value - less, "cost": 0.75 - less}
        for epoch, value in enumerate(nll, 1)
        for way, less in ways.items()
    ]


@pytest.fixture
def runs(tmp_path):
    """Two seeds of LN and BN; the second of BN lacks the cost of its first epoch."""
    for name, values in NLL.items():
        for seed, nll in enumerate(values, 1):
            directory = write(tmp_path / f"{name}{seed}", name.upper(), seed, nll=nll)
            if name == "bn":
                lines = cost_lines(nll)
                write_lines(directory / "cost.jsonl", lines[len(LESS) * (seed - 1) :])
    return sorted(tmp_path.iterdir())


def read(figure, quantity):
    found = {}
    for row in figure.rows:
        if row[5] == quantity:
            found.setdefault(row[3], {})[row[-2]] = row[-1]
    return found


def test_loss_by_epoch_and_way(runs):
    figure = blocks_of(*runs)["cost_by_epoch"]
    assert read(figure, "nll, as validated") == {
        f"ln{seed}": dict(zip(EPOCHS, nll, strict=True)) for seed, nll in enumerate(NLL["ln"], 1)
    }
    for way, name in (
        ("running", "running statistics"), ("batch", "batches' own statistics"),
        ("length-conditional", "length-conditional statistics"),
    ):  # fmt: skip
        found = read(figure, f"nll, {name}")
        for seed, nll in enumerate(NLL["bn"], 1):
            expected = {epoch: nll[epoch - 1] - LESS[way] for epoch in EPOCHS[seed - 1 :]}
            assert found[f"bn{seed}"] == pytest.approx(expected)
        differences = read(figure, f"nll minus LN's, {name}")
        means = dict(zip(EPOCHS, (5.25, 4.125, 3.25), strict=True))
        assert differences["bn2"] == pytest.approx(
            {epoch: nll - means[epoch] for epoch, nll in found["bn2"].items()}
        )
    assert len({row[5] for row in figure.rows}) == 8  # nothing of the other ways


def test_lines_are_means_and_bands_reach_over_seeds(runs):
    left, right = blocks_of(*runs)["cost_by_epoch"].draw().axes
    colours = norm_colours(["LN", "BN"])
    assert {line.get_color() for line in left.get_lines()} == set(colours.values())
    running = next(line for line in left.get_lines() if "running" in line.get_label())
    # At the epochs that both seeds have.
    assert running.get_xydata().tolist() == [[2, 3.625], [3, 3.625]]
    assert len(left.get_lines()) == len(left.collections) == 4
    label = running.get_label()
    band = left.collections[[line.get_label() for line in left.get_lines()].index(label)]
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert corners == {(2, 3.5), (2, 3.75), (3, 3.5), (3, 3.75)}
    layer = next(line for line in right.get_lines() if line.get_label().startswith("LN"))
    assert list(layer.get_ydata()) == [0, 0, 0]
    for line in left.get_lines():  # dashes with markers look alike
        assert (line.get_marker() == "o") == (line.get_linestyle() == "-"), line.get_label()


def test_without_layer_norm_there_is_no_difference(runs):
    figure = blocks_of(*(run for run in runs if run.name.startswith("bn")))["cost_by_epoch"]
    assert len(figure.draw().axes) == 1
    assert not any("LN" in row[5] for row in figure.rows)


def test_checkpoints_within_epochs_are_left_out(tmp_path):
    nll = (5.0, 4.0, 3.5)
    directory = write(tmp_path / "bn", nll=nll)
    between = cost_lines(nll, update=lambda epoch: 100 * epoch + 50)
    write_lines(directory / "cost.jsonl", between + cost_lines(nll))
    found = read(blocks_of(directory)["cost_by_epoch"], "nll, running statistics")
    assert found == {"bn": dict(zip(EPOCHS, nll, strict=True))}
    write_lines(directory / "cost.jsonl", between)
    assert "cost_by_epoch" not in blocks_of(directory)


def test_length_conditional_cost_of_the_last_checkpoint(runs):
    figure = blocks_of(*runs)["cost"]
    bars = figure.draw().axes[0]
    names = [tick.get_text() for tick in bars.get_xticklabels()]
    heights = dict(zip(names, (bar.get_height() for bar in bars.patches), strict=True))
    assert heights["length-conditional"] == pytest.approx(0.25)
    assert "Length-conditional" in figure.caption
