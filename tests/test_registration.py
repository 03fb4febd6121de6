"""The plugin is registered with fairseq however the two are imported."""

import subprocess
import sys

import pytest

import runs

CHECK = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

assert "rbn_transformer" in MODEL_REGISTRY
assert "translation_rbn" in TASK_REGISTRY
assert "label_smoothed_cross_entropy_rbn" in CRITERION_REGISTRY
"""
USER_DIR = f"""
import argparse
from fairseq.utils import import_user_module
import_user_module(argparse.Namespace(user_dir={str(runs.USER_DIR)!r}))
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import rbn_fairseq.norms" + USER_DIR,
        *(
            pytest.param(imports, marks=pytest.mark.nightly)
            for imports in (
                "import rbn_fairseq, importlib.util; importlib.util.find_spec('fairseq'); "
                "import fairseq",
                "from rbn_fairseq.callbacks import Callback",
                "import fairseq, rbn_fairseq",
                "import rbn_fairseq, fairseq",
                "import rbn_fairseq; rbn_fairseq.register(); rbn_fairseq.register()",
                "import fairseq" + USER_DIR,
                "import fairseq_cli.train, rbn_fairseq.diagnostics",
                # Whichever package is the first, it finds the others.
                "import rbn_fairseq.checkpoints",
                "import rbn_fairseq.criterions.penalty",
                "import rbn_fairseq.models.config",
                "import rbn_fairseq.callbacks.tid_monitor",
                "import rbn_fairseq.measuring.session",
            )
        ),
    ],
    ids=lambda imports: imports.split("\n")[0],
)
def test_orders(imports):
    run(imports + CHECK)


def run(program, **options):
    """Run a program that must succeed; return what it printed."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_norms_do_not_wait_for_fairseq():
    modules = run("import rbn_fairseq.norms, rbn_fairseq.diagnostics, sys; print(*sys.modules)")
    assert "torch" in modules.split() and "fairseq" not in modules.split()
    assert not {"rbn_fairseq.models", "rbn_fairseq.tasks"} & set(modules.split())


def test_a_folder_called_fairseq_is_no_harm(tmp_path):
    """Such as a clone of fairseq, beside which someone uses the norms."""
    (tmp_path / "fairseq").mkdir()
    run("import rbn_fairseq.norms, importlib.util as u; u.find_spec('fairseq')", cwd=tmp_path)


def test_without_fairseq():
    program = """
import sys
sys.modules["fairseq"] = None
import rbn_fairseq
from rbn_fairseq.cli import main
try:
    rbn_fairseq.register()
except ImportError:
    print("refused")
sys.argv = ["rbn", "tid", "x"]
try:
    main()
except SystemExit as stop:
    print(stop.code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["refused", "2"], done.stderr
    assert "rbn doctor" in done.stderr and len(done.stderr.splitlines()) == 1
