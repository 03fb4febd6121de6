"""The user's own norms, models and tasks, beside the plugin."""

import argparse
from pathlib import Path

import rbn_fairseq

__all__ = ["directories", "load"]

#: What was loaded; errors from there are the user's.
directories: list[Path] = []


def load(directory: Path) -> None:
    """Import a directory of the user's, as fairseq's ``--user-dir`` does.

    Args:
        directory: without links in it.

    Raises:
        ValueError: if it is no package, or another module has its name.
    """
    package = Path(rbn_fairseq.__file__).resolve().parent
    if directory == package:
        return
    if not (directory / "__init__.py").is_file():
        reason = f"`{directory}` is no directory"
        if (directory / package.name / "__init__.py").is_file():
            reason = f"the package is in it: `{directory / package.name}`, and loaded anyway"
        elif directory.is_dir():
            reason = f"`{directory}` has no __init__.py, so that nothing of it would be imported"
        raise ValueError(f"--user-dir: {reason}. Name the directory of your own package.")
    rbn_fairseq.register()
    from fairseq.utils import import_user_module

    directories.append(directory)
    try:
        import_user_module(argparse.Namespace(user_dir=str(directory)))
    except ImportError as error:
        if "not globally unique" not in str(error):
            raise
        raise ValueError(
            f"--user-dir: another module is called `{directory.name}`. Rename the directory."
        ) from error
