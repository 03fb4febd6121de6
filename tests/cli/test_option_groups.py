"""`rbn options`: what the plugin adds to a training's command line, and nothing of fairseq's."""

import re
from pathlib import Path

from command import rbn

COMMANDS = Path(__file__).parents[2] / "docs" / "commands.md"


def test_options_are_those_of_the_plugin():
    text = rbn("options").stdout
    told = set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE))
    rows = COMMANDS.read_text().split("## Options of the plugin")[1]
    first_columns = " ".join(re.findall(r"^\| ([^|]*) \|", rows, re.MULTILINE))
    in_page = set(re.findall(r"--[a-z][\w-]+", first_columns))
    assert len(in_page) > 20 and in_page <= told
    assert not {"--dropout", "--label-smoothing", "--left-pad-source", "--save-dir"} & told
    # Of all others the page says where to look: parameters of norms, steps of multipliers.
    for name in told - in_page:
        assert re.match("--norm-[a-z]+-[a-z]|--rbn-target-(step|cap)", name), name


def test_help_of_a_training_says_where_options_are_listed():
    text = " ".join(rbn("train", "--help").stdout.split())
    assert "`rbn options` lists those of the plugin" in text
