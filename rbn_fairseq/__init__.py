"""Regularised Batch Normalization (RBN) for fairseq.

The directory of this package is the value of fairseq's ``--user-dir``. ``rbn_fairseq.norms`` and
``rbn_fairseq.diagnostics`` need only torch and numpy; models, criterions and tasks are registered
with fairseq as soon as both are imported, in either order.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Optional

from rbn_fairseq.version import __version__

__all__ = ["__version__", "register"]


def register() -> None:
    """Register the models, criterions and tasks with fairseq; a second call does nothing.

    Raises:
        ImportError: if fairseq is not installed, or cannot be imported.
    """
    from rbn_fairseq import criterions, models, tasks  # noqa: F401
    from rbn_fairseq.checkpoints.safe import allow_fairseq_types, run_no_settings

    allow_fairseq_types()
    run_no_settings()  # in all modules of fairseq that are imported by now


class _AfterFairseq(MetaPathFinder):
    """Registers at the end of a later ``import fairseq``."""

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        if fullname != "fairseq":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is None or spec.loader is None or spec.origin is None:  # a folder of that name
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                register()
                sys.meta_path.remove(self)

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


# fairseq's --user-dir imports a module once: what is here before it would not be registered.
if sys.modules.get("fairseq") is not None:
    register()
else:
    sys.meta_path.insert(0, _AfterFairseq())
