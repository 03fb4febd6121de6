"""What `rbn` imports before it has something to compute."""

import json
import multiprocessing
import signal
import subprocess
import sys
import time
from typing import get_args

import pytest
import typer

from rbn_fairseq import cli
from rbn_fairseq.cli import options
from rbn_fairseq.cli.app import app
from rbn_fairseq.diagnostics import ESTIMATES, POPULATIONS
from rbn_fairseq.version import __version__

# Seconds to import, each.
SLOW = ("torch", "fairseq", "numpy", "matplotlib", "pandas", "sacrebleu", "hydra")
PROGRAM = """
import contextlib, io, json, sys
from rbn_fairseq import cli
results = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["rbn", *arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            cli.main()
        except SystemExit as end:
            results.append([end.code, printed.getvalue()])
print(json.dumps([results, [name for name in sys.modules if "." not in name]]))
"""


def verbs(command=None, path=()):
    """Yield every verb, as words, and its command."""
    command = command or typer.main.get_command(app)
    for name, verb in sorted(getattr(command, "commands", {}).items()):
        yield (*path, name), verb
        yield from verbs(verb, (*path, name))


def test_help_and_typos_import_nothing_slow():
    calls = [
        (("--help",), 0, "recalibrate"),
        (("-h",), 0, "recalibrate"),
        (("--version",), 0, __version__),
        (("user-dir",), 0, "rbn_fairseq"),
        (("trian",), 2, "Did you mean 'train'"),
        (("tid", "x", "--batche", "3"), 2, "--batches"),
        (("train",), 2, "DATA-BIN is missing"),
        *[((*verb, "-h"), 0, "Usage: rbn") for verb, _ in verbs()],
    ]
    command = [sys.executable, "-c", PROGRAM, json.dumps([arguments for arguments, *_ in calls])]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True)
    results, modules = json.loads(done.stdout)
    for (arguments, status, words), (code, printed) in zip(calls, results, strict=True):
        assert code == status and words in printed, (arguments, printed)
    assert not set(modules) & set(SLOW)


def test_defaults_that_are_written_twice():
    """As the command line cannot ask the modules that know them."""
    found = {}
    for _, command in verbs():
        for parameter in command.params:
            found.setdefault(parameter.name, set()).add(parameter.default)
    assert found["population"] == {ESTIMATES[0]} == {POPULATIONS[0]}
    assert get_args(get_args(options.Estimate)[0]) == ESTIMATES
    assert get_args(get_args(options.Population)[0]) == POPULATIONS


@pytest.mark.parametrize("status, ends", [(0, []), (2, [2]), ("a text", [1])])
def test_a_failed_command_does_not_wait_for_threads(monkeypatch, status, ends):
    """Python aborts where it ends while one of fairseq's reads data."""
    ended = []
    monkeypatch.setattr(cli, "main", lambda: sys.exit(status))
    monkeypatch.setattr("os._exit", ended.append)
    if not status:
        with pytest.raises(SystemExit):
            cli.command()
    else:
        cli.command()
    assert ended == ends


def test_a_failed_command_ends_its_processes(monkeypatch):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=time.sleep, args=(600,))
    process.start()
    monkeypatch.setattr(cli, "main", lambda: sys.exit(2))
    monkeypatch.setattr("os._exit", lambda status: None)
    cli.command()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


def test_the_same_thing_has_the_same_name_in_every_verb():
    given = {}
    for verb, command in verbs():
        given[verb] = {it for parameter in command.params for it in parameter.opts}
    names = set().union(*given.values())
    # One name each for what is written, the data, the device, and leave to write over a file.
    assert not names & {"--out", "--inputs", "--csv", "--file", "--force", "--gpu", "--cpu"}
    for names in given.values():
        writes = names & {"--output", "--json", "--figure"}
        resumes = "--jobs" in names
        assert ("--overwrite" in names) == bool(writes) or resumes
