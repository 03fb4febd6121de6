"""Which files the package has; everything else about it is in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

# The recipes have one place, which a clone and an installed package call differently.
RECIPES = {
    ".".join(["rbn_fairseq", *folder.parts]): str(folder)
    for folder in (Path("configs"), *sorted(Path("configs").iterdir()))
    if folder.is_dir()
}

setup(
    packages=[*find_packages(include=["rbn_fairseq*"]), *RECIPES],
    package_dir=RECIPES,
    package_data={
        "rbn_fairseq": ["py.typed"],
        "rbn_fairseq.report": ["page.css", "page.html", "page.js", "published.csv", "vendor/*"],
        **dict.fromkeys(RECIPES, ["*.yaml"]),
    },
)
