"""Gradients of norms that have a backward of their own, and what torch.compile makes of them.

Definitions are in the files of the norms; here autograd's numerical differences are the oracle, on
so many rows that a CPU takes them in several blocks, if it takes blocks at all.
"""

import copy

import pytest
import torch

from agreement import randomise
from rbn_fairseq.norms import NORMS, BatchLayout, NormPlace, PopulationNorm, build_norm

C = 6
CASES = {
    "rms": {}, "rms outside": {"eps_mode": "outside"}, "prms": {"p": 0.5}, "group": {"groups": 2},
    "groupscale": {"groups": 3}, "dyt": {}, "derf": {}, "instance": {}, "scale": {},
}  # fmt: skip
LENGTHS = [1, 3, 3, 3, 0, 2]


@pytest.fixture(params=[1, 4 * C, 2**18], ids=["a row", "four rows", "all rows"])
def block(request, monkeypatch):
    """Numbers that a block holds."""
    monkeypatch.setattr("rbn_fairseq.norms.normalise.BLOCK", request.param)


def build(case, channels=C):
    name = case.split()[0]
    return randomise(
        build_norm(
            [name],
            NormPlace(channels, heads=2),
            {name: NORMS[name].options_type(**CASES.get(case, {}))},
        )
    )


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_differences(case, block):
    norm = build(case).double()
    layout = BatchLayout(torch.tensor(LENGTHS), LENGTHS)
    x = torch.randn(layout.rows, C, dtype=torch.double, requires_grad=True)

    def run(x, *parameters):
        values = dict(zip(dict(norm.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(norm, values, (x, layout))

    assert torch.autograd.gradcheck(run, (x, *norm.parameters()))


@pytest.mark.parametrize("case", CASES)
def test_its_output_may_be_changed_in_place(case, block):
    norm, layout = build(case), BatchLayout(torch.tensor(LENGTHS), LENGTHS)
    x = torch.randn(layout.rows, C, requires_grad=True)
    apart, y = norm(x, layout) * 3, norm(x, layout)
    y.mul_(3)
    gradients = [torch.autograd.grad(it, x, it.detach().cos())[0] for it in (y, apart)]
    torch.testing.assert_close(*gradients)


def test_instance_norm_of_a_sentence_does_not_depend_on_the_others(block):
    norm = build("instance").double()
    layout = BatchLayout(torch.tensor(LENGTHS), LENGTHS)
    x = torch.randn(layout.rows, C, dtype=torch.double)
    alone = [norm(sentence.unsqueeze(1)).squeeze(1) for sentence in x.split(LENGTHS)]
    torch.testing.assert_close(norm(x, layout), torch.cat(alone))


def test_instance_norm_passes_no_gradient_to_a_sentence_of_one_token(block):
    options = {"instance": NORMS["instance"].options_type(eps=1e-12)}
    norm = randomise(build_norm(["instance"], NormPlace(C), options))
    layout = BatchLayout(torch.tensor(LENGTHS), LENGTHS)
    x = torch.randn(layout.rows, C, requires_grad=True)
    (norm(x, layout) * torch.randn_like(x)).sum().backward()
    assert not x.grad[0].any() and x.grad[1:4].any()


@pytest.mark.parametrize("name", [name for name, norm in NORMS.items() if not norm.leaks])
def test_is_traced_for_any_number_of_rows(name):
    norm, x = build(name, 768).eval(), torch.randn(300, 768)
    traced = torch.jit.trace(norm, (torch.randn(7, 768),))
    torch.testing.assert_close(traced(x), norm(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NORMS)
def test_compiles(name, training):
    """Whole, but for what moves running statistics."""
    torch._dynamo.reset()
    norm = build(name, 12).train(training)
    whole = not (training and isinstance(norm, PopulationNorm))
    lengths = [5, 3, 3]
    layout = BatchLayout(torch.tensor(lengths), lengths)
    compiled = torch.compile(copy.deepcopy(norm), backend="aot_eager", fullgraph=whole)
    results = []
    for function in (norm, compiled):
        x = torch.linspace(-2, 3, 11 * 12).view(11, 12).requires_grad_()
        with torch.set_grad_enabled(training):
            y = function(x, layout)
        results.append([y])
        if training and y.requires_grad and y is not x:
            inputs = [x, *function.parameters()]
            results[-1] += torch.autograd.grad(y, inputs, y.detach().cos())
        results[-1] += function.buffers()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # sums in another order
