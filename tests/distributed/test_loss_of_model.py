"""The loss that the model computes, under torch's own data parallelism: gradients of both halves.

fairseq wraps a model so only on GPUs. A weight that is used outside the wrapped forward would have
one process's gradient.
"""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed import ModuleProxyWrapper
from torch.nn.parallel import DistributedDataParallel

from processes import WORLD, on_processes
from rbn_fairseq.criterions import LabelSmoothedCrossEntropyRBN
from rbn_fairseq.criterions.penalty import RBNPenaltyConfig
from rbn_fairseq.models.loss import HAS_CHUNKS
from small_models import STILL, build, sample, task

NEEDS_CHUNKS = pytest.mark.skipif(not HAS_CHUNKS, reason="torch before 2.13")
LENGTHS = [([5, 5], [3, 5]), ([2, 4], [6, 1])]  # of each process's sentences


def gradients_of(model, criterion, rank, wrapped):
    """Gradients of two sentences that only this process has."""
    seen = ModuleProxyWrapper(DistributedDataParallel(model)) if wrapped else model
    assert getattr(seen, "gives_loss", False) == HAS_CHUNKS or not wrapped
    criterion.train()(seen, sample(LENGTHS[rank]))[0].backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def gradients(rank, wrapped=True):
    """Those of the loss; alone, of fairseq's own criterion."""
    model = build(share_all_embeddings=True, **STILL).double()
    kind = LabelSmoothedCrossEntropyRBN if wrapped else LabelSmoothedCrossEntropyCriterion
    criterion = kind(task(), sentence_avg=False, label_smoothing=0.1)
    return gradients_of(model, criterion, rank, wrapped)


def penalised(rank, wrapped=True):
    """The same with batch norm, by each process's own statistics, and the penalty."""
    model = build(share_all_embeddings=True, norm_encoder="batch", **STILL).double()
    criterion = LabelSmoothedCrossEntropyRBN(task(), sentence_avg=False, label_smoothing=0.1)
    criterion.rbn = RBNPenaltyConfig(rbn_mean_weight=3.0, rbn_std_weight=2.0)
    return gradients_of(model, criterion, rank, wrapped)


@pytest.mark.parametrize("function", [pytest.param(gradients, marks=NEEDS_CHUNKS), penalised])
def test_gradients_are_those_of_both_processes(function, tmp_path):
    first, second = on_processes(function, tmp_path)
    halves = [function(rank, wrapped=False) for rank in range(WORLD)]
    for name, gradient in first.items():
        mean = (halves[0][name] + halves[1][name]) / WORLD
        # The softmax of fairseq's own criterion is fp32.
        torch.testing.assert_close(gradient, mean, rtol=1e-5, atol=1e-5)
        assert torch.equal(gradient, second[name])
