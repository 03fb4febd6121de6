"""Regularised Batch Normalization (RBN) for fairseq.

The directory of this package is the value of fairseq's ``--user-dir``. Importing it registers
models, criterions and tasks where fairseq is installed; ``rbn_fairseq.norms`` and
``rbn_fairseq.diagnostics`` need torch alone.
"""

import warnings

from rbn_fairseq.version import __version__

__all__ = ["__version__"]

try:
    import fairseq  # noqa: F401
except Exception as error:
    # Not there, or broken, as `fairseq` 0.12.2 is on Python 3.11: the pure-torch part works all
    # the same, and `rbn doctor` tells the way out.
    if not (isinstance(error, ModuleNotFoundError) and error.name == "fairseq"):
        warnings.warn(f"fairseq cannot be imported ({error}); see `rbn doctor`.", stacklevel=2)
else:
    from rbn_fairseq import checkpoints, criterions, models, tasks  # noqa: F401
