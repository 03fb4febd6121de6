"""The one place of the version."""

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Optional

__version__ = "0.1.0"


def installed(package: str) -> str:
    """Return the version of a distribution; empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def commit() -> Optional[str]:
    """Return the commit of a clone, with ``+`` where files were changed; elsewhere ``None``."""
    clone = Path(__file__).parents[1]
    if not (clone / ".git").exists():
        return None
    try:
        named = ["git", "-C", str(clone), "describe", "--always", "--abbrev=12", "--dirty=+"]
        return subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
