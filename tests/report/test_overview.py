"""What the page says first: which norm is best and how surely; settings and trainings."""

import json
import math

from scipy import stats

from rbn_fairseq.report.content import heading
from rbn_fairseq.report.overview import findings
from rbn_fairseq.report.runs import read_run


def seeds(make, name, kind, losses, **more):
    return [make(f"{name}{seed}", kind, seed=seed, nll=(5.0, nll), **more)
            for seed, nll in enumerate(losses, 1)]  # fmt: skip


LAYER = (4.0, 4.2, 4.1)


def test_an_interval_of_three_seeds(make, group):
    losses = (3.9, 4.05, 3.98)
    text, *_ = findings(group([*seeds(make, "ln", "LN", LAYER), *seeds(make, "bn", "BN", losses)]))
    gaps = [base - loss for loss, base in zip(losses, LAYER, strict=True)]
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert text.startswith("BN is ahead in validation loss after epoch 2.")
    assert f"BN is 0.123 below LN (95 % CI {low:.3f} to {high:.3f}; 3 seeds)" in text


def test_what_seeds_cannot_tell(make, group):
    runs = [*seeds(make, "ln", "LN", LAYER), *seeds(make, "bn", "BN", (3.9, 4.3, 4.0))]
    assert "which includes 0" in findings(group(runs))[0]
    runs += seeds(make, "rbn", "RBN", (3.5, 4.4, 3.9))
    text, *_ = findings(group(runs))
    assert text.startswith("RBN, BN and LN are level after epoch 2.")
    low, high = stats.ttest_1samp([3.5 - 3.9, 4.4 - 4.3, 3.9 - 4.0], 0).confidence_interval(0.95)
    assert f"RBN minus BN: 95 % CI {low:.3f} to {high:.3f}".replace("-", "−") in text
    runs = [*runs[:6], *seeds(make, "pn", "power", (3.2, 3.5, 3.3))]
    text, *_ = findings(group(runs))
    assert text.startswith("PN-only is ahead") and "; PN-only minus BN: 95 % CI −" in text
    two = [*seeds(make, "l", "LN", LAYER[:2]), *seeds(make, "b", "BN", (3.5, 3.9))]
    assert "(two seeds: 0.500 and 0.300)" in findings(group(two))[0]
    one = [make("x", nll=(4.0,)), make("y", "BN", nll=(4.5,))]
    text, *_ = findings(group(one))
    assert text.startswith("LN is ahead") and "BN is 0.500 above LN" in text
    assert "Fewer than three seeds" in text
    runs = [*seeds(make, "n", "LN", (4.0, 4.2, 4.1)), *seeds(make, "m", "BN", (4.1, 4.1, 4.2))]
    assert findings(group(runs))[0].startswith("BN and LN are level after epoch 2.")


def test_seeds_that_layer_norm_lacks_make_no_interval(make, group):
    runs = [*seeds(make, "ln", "LN", LAYER[:1]), *seeds(make, "bn", "BN", (4.10, 4.12, 4.11))]
    text, *_ = findings(group(runs))
    assert "BN is 0.110 above LN (3 seeds, of which LN lacks some: no interval)" in text
    assert "Fewer than three seeds" in text


def test_what_has_no_layer_norm_of_its_settings_is_named(make, group):
    other = {"optimization.lr": [0.1]}
    runs = [make("ln"), make("bn", "BN"), make("rbn", "RBN", changes=other, nll=(2.0, 2.0, 2.0))]
    assert "Not compared, as no LN has their settings: RBN." in findings(group(runs))[0]
    assert "No LN and another norm have the same" in findings(group([runs[0], runs[2]]))[0]
    running = [make("new", nll=(), tid=(0.1, 0.1)), make("bn2", "BN")]
    assert "No epoch has a finite loss of an LN and" in findings(group(running))[0]


def test_layer_norm_with_fixnorm_is_named(make, group):
    fixed = {"model.norm_unit_embeddings": True}
    runs = [make("l", nll=(3.0,), changes=fixed), make("b", "BN", nll=(3.2,), changes=fixed)]
    text, *_ = findings(group(runs))
    assert text.startswith("LN with FixNorm is ahead in validation loss after epoch 1.")
    assert "BN with FixNorm is 0.200 above LN with FixNorm." in text and "Not compared" not in text
    text, *_ = findings(group([*runs, make("plain", nll=(3.5,))]))
    assert (
        "LN with FixNorm is 0.500 below LN; BN with FixNorm is 0.200 above LN with FixNorm." in text
    )


def test_losses_that_still_fall(make, group):
    early = [make("x", nll=(5.0, 4.0)), make("y", "BN", nll=(4.8, 3.9))]
    assert "still fell by 0.90 since the validation before" in findings(group(early))[0]
    late = [make("v", nll=(4.1, 4.0)), make("w", "BN", nll=(3.6, 3.5))]
    assert "still fell" not in findings(group(late))[0]
    seldom = []
    for name, kind, last in (("s", "LN", 4.0), ("t", "BN", 3.9)):
        run = make(name, kind, nll=(5.0, 4.5, last))
        log = run.directory / "train.log"
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if "valid | epoch 002" not in line))
        seldom.append(read_run(name, run.directory))
    assert "still fell by 1.10 since the validation before" in findings(group(seldom))[0]


def test_what_is_not_compared(make, group, tmp_path):
    runs = [make("ln", nll=(5.0, 4.0, 3.0, 2.0)), make("bn", "BN", nll=(5.0, 4.0, 3.5, 3.0)),
            make("rbn", "RBN", nll=(5.0,)), make("pn", "power", nll=(5.0, math.inf))]  # fmt: skip
    text, *_ = findings(group(runs))
    assert "after epoch 4" in text and "with far fewer epochs: RBN." in text
    assert "pn diverged" in text
    for few in (runs[:1], runs[1:3]):
        assert "no differences are shown" in findings(group(few))[0]
    (runs[0].directory / "run.json").unlink()
    assert "unknown" in findings(group([read_run("ln", runs[0].directory)]))[0]
    empty = make("empty", nll=(), tid=(0.1, 0.2))
    assert "no validation" in findings(group([empty]))[0]


def test_each_setting_is_compared_with_layer_norm_of_its_recipe(make, group):
    losses = (("LN", 1, 4.0), ("BN", 1, 3.5), ("LN", 2, 3.0), ("BN", 2, 2.9))
    runs = [make(f"{kind}{lr}", kind, nll=(nll,), changes={"optimization.lr": [lr]})
            for kind, lr, nll in losses]  # fmt: skip
    text, *_ = findings(group(runs))
    assert text.startswith("BN (lr 1) gains most on the LN of its settings")
    assert "BN (lr 1) is 0.500 below LN; BN (lr 2) is 0.100 below LN" in text
    behind = [make(f"behind{kind}{lr}", kind, nll=(5.0 if kind == "BN" else 4.0,),
                   changes={"optimization.lr": [lr]}) for kind, lr, _ in losses]  # fmt: skip
    assert findings(group(behind))[0].startswith("None gains on the LN of its settings after")


def test_the_heading_names_data_and_at_most_five_norms(main, make):
    assert heading(main) == "iwslt14: LN, BN, RBN"
    more = [make(plan, plan) for plan in ("rms", "group", "instance", "power", "mabn")]
    assert heading([*main, *more]).endswith(": LN, BN, RBN, RMSNorm, GroupNorm, 3 more")


def test_tid_of_the_last_norm(main, group):
    assert "BN 2.0 and 10.0 %; RBN 1.0 and 4.0 %" in findings(group(main))[1]


def test_settings_that_differ_and_those_that_all_share(main, blocks):
    start = {"update": 0, "time": "2026-01-02T03:04:05+00:00", "machine": {"threads": 1}}
    for run in main:
        path = run.directory / "run.json"
        content = json.loads(path.read_text())
        command = f"rbn train {run.name}"
        starts = [start | {"command": command}, start | {"update": 9}]
        path.write_text(json.dumps(content | {"parameters": 123, "starts": starts}))
    made = blocks([read_run(run.name, run.directory) for run in main])
    settings = made["settings"].texts().set_index("setting")
    assert settings["--rbn-mean-weight"].to_dict() == {"LN": "0", "BN": "0", "RBN": "0.1"}
    assert settings["parameters"].to_list() == ["123"] * 3
    assert settings["updates"].to_list() == ["300"] * 3 and "--lr" not in settings
    trainings = made["trainings"].numbers.set_index("run")
    assert trainings["command"].to_dict() == {
        name: f"rbn train {name}" for name in ("ln", "bn", "rbn")
    }
    common = made["common"].numbers.set_index("setting")["value"]
    assert common["--lr"] == "0.0005" and common["--max-tokens"] == "4096"
    assert common["started (UTC)"] == "2026-01-02 03:04" and common["resumed"] == "1"
    assert common["threads"] == "1"
