"""The scripts of this repository, run by bash in the environment of the tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def script(name, *arguments, cwd=ROOT, path=None, call=subprocess.run):
    """Run ``scripts/NAME`` by a function of subprocess; ``path`` goes first on PATH."""
    places = [str(path)] if path else []
    places += [str(Path(sys.executable).parent), os.environ["PATH"]]
    return call(
        ["bash", str(ROOT / "scripts" / name), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PATH": os.pathsep.join(places), "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def succeed(name, *arguments, **options):
    """Run a script that must succeed; return what it printed."""
    done = script(name, *arguments, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def refusal(name, *arguments, **options):
    """Run a script that must refuse; return its last line on stderr."""
    done = script(name, *arguments, **options)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]
