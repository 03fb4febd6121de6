"""Synchronised statistics with `--checkpoint-activations`: collectives run again, in order."""

import argparse
import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fairseq.data import Dictionary

from processes import on_processes
from rbn_fairseq.criterions import LabelSmoothedCrossEntropyRBN
from rbn_fairseq.criterions.label_smoothed_cross_entropy_rbn import (
    LabelSmoothedCrossEntropyRBNConfig,
)
from rbn_fairseq.models import RBNTransformerModel
from rbn_fairseq.norms import dummy_batch

PLACEMENTS = {"post": False, "pre": True}
LENGTHS = [  # by step, then by rank: one rank alone has pads; both; rank 1 runs a dummy batch
    [[3, 2], [4, 4]],
    [[5, 1], [2, 3]],
    [[4, 2], [3, 4]],
]


def task():
    dictionary = Dictionary()
    for index in range(20):
        dictionary.add_symbol(f"w{index}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def build(before, **options):
    torch.manual_seed(3)
    cfg = argparse.Namespace(
        arch="rbn_transformer", dropout=0.1, norm_encoder="batch", norm_decoder="batch",
        norm_sync=True, encoder_normalize_before=before, decoder_normalize_before=before,
        max_source_positions=9, max_target_positions=9, **options,
    )  # fmt: skip
    for side in ("encoder", "decoder"):
        sizes = {"embed_dim": 8, "ffn_embed_dim": 12, "layers": 2, "attention_heads": 2}
        vars(cfg).update({f"{side}_{name}": size for name, size in sizes.items()})
    return RBNTransformerModel.build_model(cfg, task()).double().train()


def sample(number, rank):
    lengths = LENGTHS[number][rank]
    generator = torch.Generator().manual_seed(10 * number + rank)
    words = torch.randint(4, 20, (2, max(lengths)), generator=generator)
    words[torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(1)] = 1
    inputs = {"src_tokens": words, "src_lengths": torch.tensor(lengths)}
    inputs["prev_output_tokens"] = words
    return {"net_input": inputs, "target": words, "ntokens": sum(lengths)}


def steps(rank, calls, before, **options):
    """What every step leaves behind, and how many collectives the last one took."""
    cfg = LabelSmoothedCrossEntropyRBNConfig(
        sentence_avg=False, label_smoothing=0.1, rbn_mean_weight=0.3, rbn_std_weight=0.7
    )
    criterion = LabelSmoothedCrossEntropyRBN.build_criterion(cfg, task()).train()
    model, seen = build(before, **options), []
    for number in range(3):
        calls.clear()
        model.zero_grad()
        torch.manual_seed(rank)
        with dummy_batch() if (number, rank) == (2, 1) else contextlib.nullcontext():
            loss = criterion(model, sample(number, rank))[0]
            loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        seen.append([loss.detach(), *gradients, *(b.clone() for b in model.buffers())])
    return {"seen": seen, "calls": list(calls)}


def work(rank):
    calls = []

    def counted(function):
        def call(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return call

    for name in ("all_reduce", "all_gather_into_tensor"):
        setattr(dist, name, counted(getattr(dist, name)))
    return {
        (name, again): steps(rank, calls, before, checkpoint_activations=again)
        for name, before in PLACEMENTS.items()
        for again in (False, True)
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_processes(work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_two_processes_train_the_same(ranks, placement):
    for results in ranks:
        plain, again = results[placement, False], results[placement, True]
        for expected, actual in zip(plain["seen"], again["seen"], strict=True):
            assert all(map(torch.equal, actual, expected))
        # 10 batch norms: one collective each in forward and backward, and in the second forward.
        assert [plain["calls"].count(name) for name in set(plain["calls"])] == [10, 10]
        assert again["calls"].count("all_gather_into_tensor") == 20
        assert again["calls"].count("all_reduce") == 10
    assert ranks[0][placement, True]["calls"] == ranks[1][placement, True]["calls"]
