"""What stands first on the page: differences to layer norm; settings and trainings."""

import json
import math
import re

from pytest import approx
from scipy import stats

from rbn_fairseq.report.content import heading
from rbn_fairseq.report.runs import read_run


def seeds(make, name, kind, losses, **more):
    return [make(f"{name}{seed}", kind, seed=seed, nll=(5.0, nll), **more)
            for seed, nll in enumerate(losses, 1)]  # fmt: skip


LAYER = (4.0, 4.2, 4.1)


def test_an_interval_of_three_seeds(make, blocks):
    losses = (3.9, 4.05, 4.2)
    runs = [*seeds(make, "ln", "LN", LAYER), *seeds(make, "bn", "BN", losses)]
    runs[3] = make("longer", "BN", nll=(5.0, losses[0], 3.0))  # of the first seed alone
    table = blocks(runs)["differences"]
    gaps = [loss - base for loss, base in zip(losses, LAYER, strict=True)]
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    (row,) = table.numbers.to_dict("records")
    assert row == {"setting": "BN", "nll - LN's": approx(sum(gaps) / 3), "95 % from": approx(low),
                   "to": approx(high), "epoch": 2, "seeds": 3}  # fmt: skip
    assert table.texts().iloc[0].tolist()[1:] == ["-0.050", f"{low:+.3f}", f"{high:+.3f}", "2", "3"]
    assert not any("No interval" in note for note in table.notes)


def test_no_interval_without_three_pairs(make, blocks):
    """Two seeds, and three of which layer norm has one."""
    two = [*seeds(make, "ln", "LN", LAYER[:2]), *seeds(make, "bn", "BN", (3.5, 3.9))]
    few = [*seeds(make, "one", "LN", LAYER[:1]), *seeds(make, "three", "BN", (4.1, 4.12, 4.11))]
    for runs, gap in ((two, -0.4), (few, 0.11)):
        table = blocks(runs)["differences"]
        assert table.columns == ["setting", "nll - LN's", "epoch", "seeds"]
        assert table.numbers["nll - LN's"].tolist() == approx([gap])
        assert any("No interval" in note and note.endswith(": BN.") for note in table.notes)


def test_what_is_not_compared_is_named(make, blocks):
    other = {"optimization.lr": [0.1]}
    losses = (3.9, math.inf, 4.0)
    runs = [*seeds(make, "ln", "LN", LAYER), *seeds(make, "bn", "BN", losses),
            make("rbn", "RBN", changes=other)]  # fmt: skip
    table = blocks(runs)["differences"]
    assert table.numbers["nll - LN's"].tolist() == approx([-0.1, math.nan], nan_ok=True)
    assert table.numbers["seeds"].tolist() == [2, 0]
    assert table.texts().iloc[1].tolist() == ["RBN", "", "", "0"]
    assert any("not finite" in note and note.endswith(": bn2.") for note in table.notes)
    assert any(note.endswith("the settings of: RBN.") for note in table.notes)
    assert not any("No interval" in note and "RBN" in note for note in table.notes)


def test_where_nothing_is_compared_notes_say_why(make, blocks, tmp_path):
    batch = make("bn", "BN", nll=(5.0, 4.0))
    (tmp_path / "new").mkdir()
    new = make("new/bn", "BN", nll=())
    for runs, end in (
        ([make("ln"), make("rbn", "RBN", changes={"optimization.lr": [0.1]})], "settings of: RBN."),
        ([make("broken", nll=(5.0, math.nan)), batch], "did not diverge has the settings of: BN."),
        ([make("ln2"), new], "within 5 %: BN."),
    ):
        table = blocks(runs)["differences"]
        assert table.columns == ["setting", "nll - LN's", "seeds"]
        (row,) = table.texts().to_numpy().tolist()
        assert row[1:] == ["", "0"] and table.notes[1].endswith(end)
    assert "differences" not in blocks([batch])
    assert "differences" not in blocks([make("a"), make("b", changes={"optimization.lr": [0.1]})])


def test_what_had_other_numbers_of_updates_is_named(make, blocks, tmp_path):
    runs = [make("ln"), make("bn", "BN"), make("rbn", "RBN")]
    log = tmp_path / "rbn" / "train.log"
    log.write_text(re.sub(r"num_updates (\d)", r"num_updates 1\1", log.read_text()))
    table = blocks([*runs[:2], read_run("rbn", log.parent)])["differences"]
    rows = table.numbers.set_index("setting")["nll - LN's"]
    assert rows.to_dict() == approx({"BN": 0.0, "RBN": math.nan}, nan_ok=True)
    assert any("within 5 %" in note and note.endswith(": RBN.") for note in table.notes)
    assert not any("within 5 %" in note for note in blocks(runs)["differences"].notes)


def test_each_setting_is_compared_with_layer_norm_of_its_recipe(make, blocks):
    losses = (("LN", 1, 4.0), ("BN", 1, 3.5), ("LN", 2, 3.0), ("BN", 2, 2.9))
    runs = [make(f"{kind}{lr}", kind, nll=(nll,), changes={"optimization.lr": [lr]})
            for kind, lr, nll in losses]  # fmt: skip
    fixed = {"model.norm_unit_embeddings": True, "optimization.lr": [1]}
    runs += [make("fixed", nll=(3.0,), changes=fixed), make("b", "BN", nll=(3.2,), changes=fixed)]
    frame = blocks(runs)["differences"].numbers.set_index("setting")["nll - LN's"]
    gaps = {"BN (lr 1)": -0.5, "BN (lr 2)": -0.1, "LN with FixNorm": -1, "BN with FixNorm": 0.2}
    assert frame.to_dict() == approx(gaps)


def test_the_heading_names_data_and_at_most_five_norms(main, make):
    assert heading(main) == "iwslt14: LN, BN, RBN"
    more = [make(plan, plan) for plan in ("rms", "group", "instance", "power", "mabn")]
    assert heading([*main, *more]).endswith(": LN, BN, RBN, RMSNorm, GroupNorm, 3 more")


def test_settings_that_differ_and_those_that_all_share(main, blocks):
    start = {"update": 0, "time": "2026-01-02T03:04:05+00:00", "machine": {"threads": 1}}
    for run in main:
        path = run.directory / "run.json"
        content = json.loads(path.read_text())
        command = f"rbn train {run.name}"
        starts = [start | {"command": command}, start | {"update": 9}]
        if run.name == "bn":  # of a version with an option that the others do not know
            content["config"]["task"]["char_inputs"] = False
        path.write_text(json.dumps(content | {"parameters": 123, "starts": starts}))
    made = blocks([read_run(run.name, run.directory) for run in main])
    settings = made["settings"].texts().set_index("setting")
    assert settings["--rbn-mean-weight"].to_dict() == {"LN": "0", "BN": "0", "RBN": "0.1"}
    assert settings["parameters"].to_list() == ["123"] * 3
    assert settings["updates"].to_list() == ["300"] * 3
    assert not {"--lr", "--char-inputs"} & set(settings)
    trainings = made["trainings"].numbers.set_index("run")
    assert trainings["command"].to_dict() == {
        name: f"rbn train {name}" for name in ("ln", "bn", "rbn")
    }
    common = made["common"].numbers.set_index("setting")["value"]
    assert common["--lr"] == "0.0005" and common["--fp16"] == "False"
    assert common["--encoder-layers"] == "2"
    assert not {"", "None"} & set(common) and "--rbn-mean-weight" not in common
    assert common["started (UTC)"] == "2026-01-02 03:04" and common["resumed"] == "1"
    assert common["threads"] == "1"
