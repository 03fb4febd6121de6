"""Layer norm, against the definition in float64 and against torch."""

import pytest
import torch
import torch.nn.functional as F

from rbn_fairseq.norms import LayerNorm, LayerNormOptions, ValidTokens


@pytest.mark.parametrize("shape", [(4, 3, 5), (7, 513), (1, 1, 2)])
def test_agrees_with_the_definition(shape):
    norm = LayerNorm(shape[-1], LayerNormOptions(eps=0.01))
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = torch.randn(shape)
    exact = x.double()
    exact = (exact - exact.mean(-1, keepdim=True)) / torch.sqrt(
        exact.var(-1, correction=0, keepdim=True) + 0.01
    )
    # A few fp32 roundings on values of size 1 to 10.
    torch.testing.assert_close(
        norm(x).double(), exact * norm.weight + norm.bias, rtol=1e-5, atol=1e-5
    )


def test_sees_neither_batch_nor_padding():
    norm, x = LayerNorm(5), torch.randn(4, 3, 5)
    tokens = ValidTokens(torch.rand(4, 3) < 0.5)
    assert torch.equal(norm(x, tokens), F.layer_norm(x, (5,)))
    assert torch.equal(norm(x[1:, :1]), norm(x)[1:, :1])


def test_state_dict_has_fairseqs_names():
    assert list(LayerNorm(3).state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan")])
def test_refuses_eps(eps):
    with pytest.raises(ValueError, match=f"--norm-layer-eps.*positive.*{eps}"):
        LayerNormOptions(eps=eps)
