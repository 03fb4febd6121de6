"""Which modules are batch norms, this package's or torch's own, and what they remember."""

from typing import Optional

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from rbn_fairseq.norms import BatchNorm, PopulationNorm

__all__ = ["TorchBatchNorm", "batch_norms", "epsilon", "population_norms", "running_statistics"]


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the batch norms of a model by name, in the order of its modules.

    Both this package's and torch's ``BatchNorm1d``, ``2d``, ``3d`` and ``SyncBatchNorm``.
    """
    kinds = (BatchNorm, TorchBatchNorm)
    return {name: part for name, part in model.named_modules() if isinstance(part, kinds)}


def population_norms(model: nn.Module) -> dict[str, PopulationNorm]:
    """Return this package's norms with running statistics by name, in the order of the modules."""
    return {name: part for name, part in model.named_modules() if isinstance(part, PopulationNorm)}


def running_statistics(norm: nn.Module) -> Optional[tuple[Tensor, Tensor]]:
    """Return running mean and variance, each ``(C,)``; ``None`` where a norm keeps none.

    torch's norms keep the unbiased variance, larger than the biased one by ``n / (n - 1)``.
    """
    if isinstance(norm, BatchNorm):
        return norm.population.get()
    if isinstance(norm, TorchBatchNorm) and norm.running_mean is not None:
        assert norm.running_var is not None
        return norm.running_mean, norm.running_var
    return None


def epsilon(norm: nn.Module) -> float:
    """Return what keeps the norm's standard deviation away from 0; 0 for other norms."""
    if isinstance(norm, BatchNorm):
        return norm.options.eps
    return norm.eps if isinstance(norm, TorchBatchNorm) else 0.0
