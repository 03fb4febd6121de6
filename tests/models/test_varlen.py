"""Attention of all sentences in one launch: where it is taken, and that it is that of groups."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from rbn_fairseq.models import attention
from rbn_fairseq.models.attention import PackedAttention
from rbn_fairseq.norms import lay_out

HALF = {"is_cuda": True, "dtype": torch.bfloat16, "device": "cuda:0", "shape": (9, 64)}


@pytest.mark.parametrize(
    "rows, dropout, capability, chosen",
    [
        (HALF, 0.0, (9, 0), True),
        (HALF | {"dtype": torch.float16}, 0.0, (8, 0), True),
        (HALF | {"dtype": torch.float32}, 0.0, (9, 0), False),
        (HALF | {"is_cuda": False}, 0.0, (9, 0), False),
        (HALF, 0.1, (9, 0), False),  # it has no dropout
        (HALF, 0.0, (7, 5), False),
        (HALF | {"shape": (9, 48)}, 0.0, (9, 0), False),  # heads of 12
        (HALF | {"shape": (9, 4 * 264)}, 0.0, (9, 0), False),
    ],
)
def test_the_choice(monkeypatch, rows, dropout, capability, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert attention.by_varlen(SimpleNamespace(**rows), 4, dropout) is chosen


def test_on_a_gpu_groups_attend_without_cudnn(monkeypatch):
    """As each of their ever new shapes would be planned; what else the user chose stays."""
    enabled, attend, without = [], F.scaled_dot_product_attention, attention.without_cudnn

    def noting(*args, **kwargs):
        flags = torch.backends.cuda
        enabled.append((flags.cudnn_sdp_enabled(), flags.flash_sdp_enabled()))
        return attend(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    (layout,) = lay_out(torch.ones(2, 3, dtype=torch.bool))
    x = torch.randn(6, 12, dtype=torch.double)
    PackedAttention(layout).within(module(), x)
    gpu = SimpleNamespace(is_cuda=True)
    monkeypatch.setattr(attention, "without_cudnn", lambda rows: without(gpu))
    PackedAttention(layout).within(module(), x)
    assert enabled == [(True, True), (False, True)]
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_the_choice_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(attention, "_logged", set())
    with caplog.at_level("INFO"):
        for _ in range(3):
            attention.by_varlen(SimpleNamespace(**HALF | {"is_cuda": False}), 4, 0.0)
    assert len(caplog.records) == 1


def by_sentence(query, key, value, starts_q, starts_k, max_q, max_k, *, window_size):
    """What torch's function promises: ``(N, heads, D)``, sentence by sentence."""
    outputs = []
    bounds = zip(starts_q[:-1], starts_q[1:], starts_k[:-1], starts_k[1:], strict=True)
    for first, end, first_k, end_k in bounds:
        assert end - first <= max_q and end_k - first_k <= max_k
        q, k, v = (
            it.transpose(0, 1)
            for it in (query[first:end], key[first_k:end_k], value[first_k:end_k])
        )
        assert window_size in ((-1, 0), (-1, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=window_size == (-1, 0))
        outputs.append(y.transpose(0, 1))
    return torch.cat(outputs)


def module():
    from fairseq.modules import MultiheadAttention

    torch.manual_seed(1)
    return MultiheadAttention(12, 3, self_attention=True).double().eval()


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_attention_of_groups(monkeypatch, causal):
    lengths = torch.tensor([[9, 2, 2, 30, 1, 9, 7], [4, 8, 1, 11, 6, 3, 3]])
    valid = [torch.arange(int(own.max())) < own.unsqueeze(1) for own in lengths]
    source, target = lay_out(*valid)
    attend, results = module(), []
    for chosen in (False, True):
        monkeypatch.setattr(attention, "by_varlen", lambda *_, chosen=chosen: chosen)
        monkeypatch.setattr(attention, "varlen_attn", by_sentence)
        torch.manual_seed(2)
        memory, x = (
            torch.randn(it.rows, 12, dtype=torch.double, requires_grad=True)
            for it in (source, target)
        )
        packed = PackedAttention(source, target, memory, causal=causal)
        own, across = packed.within(attend, x), packed.across(attend, x, weights=False)[0]
        alone = PackedAttention(source).within(attend, memory)
        outputs = own, across, alone
        gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), [x, memory])
        results.append((*outputs, *gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
