"""The command ``rbn``."""

import logging
import pickle
import sys
from pathlib import Path

from rbn_fairseq.cli.app import app

__all__ = ["main"]

_PACKAGE = Path(__file__).resolve().parent.parent


def _own_error(error: BaseException | None) -> ValueError | None:
    """Find a ValueError raised by this package among an exception and what it covers.

    Errors from elsewhere keep their traceback: they are not the user's doing.
    """
    while error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        raised_in = Path(trace.tb_frame.f_code.co_filename) if trace else Path()
        if isinstance(error, ValueError) and raised_in.is_relative_to(_PACKAGE):
            return error
        error = error.__cause__ or error.__context__
    return None


def main() -> None:
    """Run the command; a user's error is one line on stderr and exit status 2."""
    # A module of fairseq sets up logging of everything down to DEBUG when it is imported.
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, force=True)
    try:
        app(prog_name="rbn")
    except Exception as error:
        own = _own_error(error)
        if own is not None:
            message = str(own)
        elif isinstance(error, pickle.UnpicklingError):
            message = "The checkpoint holds types that are not safe to load; nothing of it was run."
        else:
            raise
        sys.stderr.write(f"rbn: error: {message}\n")
        sys.exit(2)
