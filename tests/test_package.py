"""What a wheel and a source distribution hold, and that the command works from a wheel alone."""

import json
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
    "rbn_fairseq", "configs", "docs", "scripts", "examples", "pyproject.toml", "setup.py",
    "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md",
)  # fmt: skip
BUILD = "from setuptools import build_meta as b; b.build_wheel('out'); b.build_sdist('out')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the project after `python -m build`, but for its tests and results."""
    copy = tmp_path_factory.mktemp("project")
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, copy / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, copy)
    (copy / "out").mkdir()
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy / "out"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Run the command of the unpacked wheel, outside of any clone."""
    place, elsewhere = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "rbn_fairseq", *map(str, arguments)],
            cwd=elsewhere, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(place)},
        )  # fmt: skip

    assert run("user-dir").stdout.strip() == str(place / "rbn_fairseq")
    return run


def files(*places):
    return {
        path.relative_to(ROOT).as_posix()
        for place in places
        for path in (ROOT / place).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_holds_all_of_the_package_and_the_recipes(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert files("rbn_fairseq") <= names
    assert {f"rbn_fairseq/{name}" for name in files("configs")} <= names
    assert all(name.startswith(("rbn_fairseq/", "rbn_fairseq-")) for name in names)


def test_a_source_distribution_is_whole(built):
    (archive,) = built.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tarfile.open(archive).getnames()}
    assert files("rbn_fairseq", "configs", "docs", "scripts", "examples") <= names
    assert set(PARTS[5:]) <= names


def test_the_metadata(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    text = archive.read(name).decode()
    assert "Author: the rbn_fairseq contributors" in text and "License-Expression: MIT" in text
    assert "Programming Language :: Python :: 3.12" in text


@pytest.mark.nightly
def test_an_install_knows_the_recipes(installed, data_bin):
    rows = json.loads(installed("recipes", "--json", "-").stdout)
    assert {"default", "iwslt14_post"} <= {row["name"] for row in rows}
    done = installed("recipes", "copy", "iwslt14_post")
    assert done.returncode == 0 and "wrote iwslt14_post.yaml" in done.stdout
    for recipe in ("default", "iwslt14_post.yaml"):
        done = installed("train", data_bin, "--recipe", recipe, "--preset", "small", "--check")
        assert done.returncode == 0 and "ok: rbn_transformer_iwslt_de_en" in done.stdout, (
            done.stderr
        )
