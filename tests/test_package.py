"""What a wheel and a source distribution hold, and that the command works from a wheel alone."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The clone's own files, as git or an unpacked source distribution has them.
PARTS = (
    "rbn_fairseq", "benchmarks", "configs", "docs", "scripts", "examples", "pyproject.toml",
    "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff",
    "CONTRIBUTING.md",
)  # fmt: skip
BUILD = "from setuptools import build_meta as b; b.build_wheel('out'); b.build_sdist('out')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the project after `python -m build`, but for its tests and results."""
    copy = tmp_path_factory.mktemp("project")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=lambda *_: ["__pycache__"])
        else:
            shutil.copy(ROOT / part, copy)
    (copy / "out").mkdir()
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy / "out"


def files(*places):
    return {
        path.relative_to(ROOT).as_posix()
        for place in places
        for path in (ROOT / place).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.nightly
def test_a_wheel_holds_all_of_the_package_and_the_recipes(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert files("rbn_fairseq") <= names
    assert {f"rbn_fairseq/{name}" for name in files("configs")} <= names
    assert all(name.startswith(("rbn_fairseq/", "rbn_fairseq-")) for name in names)


@pytest.mark.nightly
def test_a_source_distribution_is_whole(built):
    (archive,) = built.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tarfile.open(archive).getnames()}
    assert files(*PARTS[:6]) <= names
    assert set(PARTS[6:]) <= names


@pytest.mark.nightly
def test_an_install_knows_the_recipes(built, data_bin, tmp_path):
    """By the command of the unpacked wheel, outside of any clone."""
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "rbn_fairseq", *map(str, arguments)],
            cwd=tmp_path / "elsewhere", capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("user-dir").strip() == str(tmp_path / "site" / "rbn_fairseq")
    assert all(f" {name} " in run("recipes") for name in ("default", "iwslt14_post"))
    (tmp_path / "elsewhere" / "iwslt14_post.yaml").write_text(run("recipes", "iwslt14_post"))
    for recipe in ("default", "iwslt14_post.yaml"):
        checked = run("train", data_bin, "--recipe", recipe, "--preset", "small", "--check")
        assert "ok: rbn_transformer_iwslt_de_en" in checked
