"""No norm: the identity, and nothing to learn."""

import torch

from rbn_fairseq.norms import NoNorm, ValidTokens


def test_is_the_identity():
    x = torch.randn(4, 3, 5, requires_grad=True)
    y = NoNorm()(x, ValidTokens(torch.rand(4, 3) < 0.5))
    assert torch.equal(y, x)
    upstream = torch.randn_like(x)
    assert torch.equal(torch.autograd.grad(y, x, upstream)[0], upstream)


def test_has_nothing_to_learn():
    assert not NoNorm().state_dict()
