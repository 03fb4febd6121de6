"""`rbn bench`."""

import csv

import pytest

from command import rbn, user_error
from rbn_fairseq.bench.training import DEFAULTS


def test_updates(data_bin, tmp_path):
    result = rbn(
        "bench", "updates", data_bin, "--setting", "ln:", "--setting", "bn: --norm-encoder batch",
        "--rounds", 2, "--updates", 1, "--output", tmp_path / "out.csv",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "ratio to ln" in result.stdout and "torch" in result.stdout
    with (tmp_path / "out.csv").open() as file:
        ln, bn = csv.DictReader(file)
    assert (ln["setting"], ln["ratio"], bn["setting"]) == ("ln", "1", "bn")
    assert float(bn["ratio"]) > 0 and float(ln["seconds"]) > 0


@pytest.mark.parametrize(
    "settings, said",
    [
        (["--norm-encoder batch"], "--setting must be `NAME: OPTIONS`"),
        ([": --norm-encoder batch"], "--setting must be `NAME: OPTIONS`"),
        (["ln:", "ln: --norm-encoder rms"], "two settings have the same name"),
        (["ln:", "x: --norm-encoder nonsense"], "`x`: --norm-encoder: unknown norm `nonsense`"),
        (["ln: --arch 'open"], "--setting must be `NAME: OPTIONS`"),
        (["ln:", "x: --normm-encoder rms"], "`x`: unrecognized arguments: --normm-encoder rms"),
        (["ln:", "x: --max-tokens 99"], "`x`: options that make the batches"),
        (["ln:", "x: --seed 9"], "`x`: options that make the batches"),
        (["ln: --update-freq 2"], "--update-freq must be 1"),
    ],
)
def test_updates_refusals(capsys, data_bin, settings, said):
    given = [part for each in settings for part in ("--setting", each)]
    assert said in user_error(capsys, "bench", "updates", data_bin, *given)


def test_help_tells_the_defaults():
    said = " ".join(rbn("bench", "updates", "--help").stdout.replace("`", " ").split())
    assert DEFAULTS in said


def test_output_is_tried_before_the_work(capsys, data_bin, tmp_path):
    path = tmp_path / "nowhere" / "out.csv"
    options = ("--setting", "ln:", "--output", path)
    said = user_error(capsys, "bench", "updates", data_bin, *options)
    assert f"`{path.parent}` does not exist" in said


def test_other_options_for_all_take_the_place_of_the_defaults(capsys, data_bin):
    options = ("--setting", "ln:", "--", "--arch", "rbn_transformer_tiny")
    said = user_error(capsys, "bench", "updates", data_bin, *options)
    assert "`ln`: optimizer is required" in said
