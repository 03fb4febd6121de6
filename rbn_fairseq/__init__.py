"""Regularised Batch Normalization (RBN) for fairseq.

The directory of this package is the value of fairseq's ``--user-dir``. Importing it registers
models, criterions and tasks where fairseq is installed; ``rbn_fairseq.norms`` and
``rbn_fairseq.diagnostics`` need torch alone.
"""

from rbn_fairseq.version import __version__

__all__ = ["__version__"]

try:
    import fairseq  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "fairseq":
        raise
else:
    from rbn_fairseq import checkpoints, criterions, models, tasks  # noqa: F401
