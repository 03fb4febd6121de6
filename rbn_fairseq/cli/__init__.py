"""The command ``rbn``.

Verbs import what they need when they run: torch and fairseq take seconds, which nobody should
wait for to read a help text.
"""

import logging
import multiprocessing
import os
import sys
import traceback


def main() -> None:
    """Run the command; a user's error is a line or two on stderr and exit status 2."""
    from rbn_fairseq.cli.app import app
    from rbn_fairseq.cli.errors import explain

    # A module of fairseq sets up logging of everything down to DEBUG when it is imported.
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, force=True)
    try:
        app(prog_name="rbn")
    except Exception as error:
        message = explain(error)
        if message is None or os.environ.get("RBN_TRACEBACK", "0") != "0":
            traceback.print_exc()
        if message is None:
            sys.exit(1)
        sys.stderr.write(f"rbn: error: {message}\n")
        sys.exit(2)


def command() -> None:
    """Run the command as a process, and end it."""
    try:
        main()
    except SystemExit as end:
        if not end.code:
            raise
        for process in multiprocessing.active_children():
            if not process.daemon:  # fairseq's, one a GPU, which may wait for each other
                process.terminate()
        # fairseq's threads that read data would make Python abort where it ends in their midst.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
