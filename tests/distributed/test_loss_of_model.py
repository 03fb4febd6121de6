"""The loss that the model computes, under torch's own data parallelism: gradients of both halves.

fairseq wraps a model so only on GPUs. A weight that is used outside the wrapped forward would have
one process's gradient.
"""

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.distributed import ModuleProxyWrapper
from torch.nn.parallel import DistributedDataParallel

from processes import WORLD, on_processes
from rbn_fairseq.criterions import LabelSmoothedCrossEntropyRBN
from rbn_fairseq.models import RBNTransformerModel
from rbn_fairseq.models.loss import HAS_CHUNKS


def make_task():
    dictionary = Dictionary()
    for word in "abcdefgh":
        dictionary.add_symbol(word)
    return Namespace(source_dictionary=dictionary, target_dictionary=dictionary)


def make_model(task):
    sizes = {"embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 2, "layers": 1}
    both = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()
    }
    torch.manual_seed(1)
    cfg = Namespace(_name="rbn_transformer_tiny", dropout=0.0, share_all_embeddings=True, **both)
    return RBNTransformerModel.build_model(cfg, task).double()


def gradients(rank, wrapped=True):
    """Gradients of two sentences that only this process has."""
    task = make_task()
    model = make_model(task)
    kind = LabelSmoothedCrossEntropyRBN if wrapped else LabelSmoothedCrossEntropyCriterion
    criterion = kind(task, sentence_avg=False, label_smoothing=0.1).train()
    seen = ModuleProxyWrapper(DistributedDataParallel(model)) if wrapped else model
    generator = torch.Generator().manual_seed(rank)
    source, target = torch.randint(4, 12, (2, 2, 5), generator=generator)
    target[0, 3:] = 1  # padding
    previous = target.roll(1, dims=1)
    previous[:, 0] = 2
    previous[target == 1] = 1
    net_input = {
        "src_tokens": source,
        "src_lengths": torch.tensor([5, 5]),
        "prev_output_tokens": previous,
    }
    sample = {"net_input": net_input, "target": target, "ntokens": 8}
    assert getattr(seen, "gives_loss", False) or not wrapped
    criterion(seen, sample)[0].backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.skipif(not HAS_CHUNKS, reason="torch before 2.13")
def test_gradients_are_those_of_both_processes(tmp_path):
    found = on_processes(gradients, tmp_path)
    halves = [gradients(rank, wrapped=False) for rank in range(WORLD)]
    for name, gradient in found[0].items():
        mean = (halves[0][name] + halves[1][name]) / WORLD
        # The softmax of fairseq's own criterion is fp32.
        torch.testing.assert_close(gradient, mean, rtol=1e-5, atol=1e-5)
        assert torch.equal(gradient, found[1][name])
