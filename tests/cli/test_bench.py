"""`rbn bench`."""

import csv

import pytest

from command import rbn, user_error


def test_updates(data_bin, tmp_path):
    result = rbn(
        "bench", "updates", data_bin, "--setting", "ln:", "--setting", "bn: --norm-encoder batch",
        "--rounds", 2, "--updates", 1, "--output", tmp_path / "out.csv", "--", "--max-tokens", 500,
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
        (["ln:", "x: --norm-encoder nonsense"], "--norm-encoder: unknown norm `nonsense`"),
    ],
)
def test_updates_refusals(capsys, data_bin, settings, said):
    given = [part for each in settings for part in ("--setting", each)]
    assert said in user_error(capsys, "bench", "updates", data_bin, *given)
