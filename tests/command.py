"""The command `rbn`, called in this process."""

import os
import signal
import sys
import time
from unittest import mock

import pytest
from typer.testing import CliRunner

from rbn_fairseq import cli
from rbn_fairseq.cli.app import app


def rbn(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def completed(*arguments):
    """Return the result of a command that must succeed."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def user_error(capsys, *arguments):
    """Run the command as the shell does; return its only line on stderr."""
    with mock.patch.object(sys, "argv", ["rbn", *map(str, arguments)]):
        with pytest.raises(SystemExit) as stop:
            cli.main()
    err = capsys.readouterr().err
    assert stop.value.code == 2, err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("rbn: error: "), lines
    return lines[0]


def assert_a_signal_stops(monkeypatch, module, *arguments):
    """Run a command to which SIGTERM comes while it waits for what a module runs."""

    def run(command, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(module.subprocess, "run", run)
    result = rbn(*arguments)
    assert result.exit_code == 130 and "does what is left" in result.output
