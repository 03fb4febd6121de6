"""Multipliers: the penalty against autograd, the steps against plain arithmetic, toy optima."""

import math

import pytest
import torch

import oracles
from rbn_fairseq.criterions.multipliers import Multipliers
from rbn_fairseq.criterions.penalty import relative_gaps
from rbn_fairseq.norms import BatchNorm, BatchNormOptions, Gap, ValidTokens, record_gaps

SMOOTHING = 0.05  # as documented


def model_of(*norms):
    return torch.nn.ModuleList(norms)


def gap(norm, mean, std, count=5):
    """A gap with these distances, relative to ||sigma_B||: that is 1 in every channel."""
    ones, eps = torch.ones_like(norm.bias), norm.options.eps
    mean, var = mean * ones, (1 + std) ** 2 * ones - eps
    return Gap(
        norm, 1e-5, False, mean, ones - eps, torch.tensor(count), 0 * ones, var, 0 * ones, ones, 1.0
    )


def penalty_of(held, gaps):
    return held.penalty(gaps, relative_gaps(gaps))


def observe(held, *gaps):
    held.observe(gaps, relative_gaps(gaps))


def multipliers(channels=(1,), target=(0.01, 0.02), step=0.1, cap=10.0):
    norms = [BatchNorm(number) for number in channels]
    return norms, Multipliers(model_of(*norms), target, step, cap)


@pytest.mark.parametrize("eps_mode", ["add", "clamp"])
def test_penalty_and_gradients_are_the_formula(eps_mode):
    valid = oracles.real_tokens(5, [5, 2])
    options = BatchNormOptions(eps=0.1, eps_mode=eps_mode)
    # Of three sizes, two of them alike, in an order in which they cannot be stacked.
    norms = [BatchNorm(channels, options).double() for channels in (3, 5, 1, 3)]
    inputs = [
        torch.randn(5, 2, n.weight.numel(), dtype=torch.double, requires_grad=True) for n in norms
    ]
    for norm in norms:
        norm.population.set(*torch.rand(2, norm.weight.numel()))
    populations = [[b.clone() for b in norm.buffers()] for norm in norms]
    weights = [[0.5, 0.0], [0.25, 3.0], [1.5, 2.0], [0.0, 0.125]]
    held = Multipliers(model_of(*norms), (0.01, 0.5), 0.1, 10.0)
    assert not held.load_state_dict({str(n): [*w, 0.0, 0.0] for n, w in enumerate(weights)})
    with record_gaps() as gaps:
        for norm, x in zip(norms, inputs, strict=True):
            norm(x, ValidTokens(valid))
    penalty = penalty_of(held, gaps)
    expected = 0
    for x, (mean, var), (first, second) in zip(inputs, populations, weights, strict=True):
        batch_mean, batch_var = oracles.moments(x[valid])
        std, batch_std = (oracles.std(v, 0.1, eps_mode) for v in (var, batch_var))
        scale = (batch_std**2).sum()
        expected = expected + first * ((batch_mean - mean) ** 2).sum() / scale / 0.01**2
        expected = expected + second * ((batch_std - std) ** 2).sum() / scale / 0.5**2
    torch.testing.assert_close(penalty, expected)  # fp64 rounding, as below
    ours, exact = (torch.autograd.grad(it, inputs, retain_graph=True) for it in (penalty, expected))
    for gradient, exact_gradient in zip(ours, exact, strict=True):
        torch.testing.assert_close(gradient, exact_gradient)


@pytest.mark.parametrize(
    "smoothed, weights",
    [
        ([0.01**2, 0.02**2], [4.0, 6.0]),  # at the targets: as they are
        ([0.02**2, 0.02**2 / 9], [2.5, 6.0]),  # twice as far: 10 / 2^2
        ([1.0, 0.05**2], [1e-3, 1.6]),
        ([math.nan] * 2, [4.0, 6.0]),  # none seen yet
    ],
)
def test_no_penalty_above_the_cap(smoothed, weights):
    (norm,), held = multipliers((2,))  # targets 0.01 and 0.02, cap 10
    held.load_state_dict({"0": [4.0, 6.0, *smoothed]})
    made = gap(norm, 0.03, 0.06)
    # Both are three times as far off as the target. fp32 rounding of 1 + h.
    assert penalty_of(held, [made]).item() == pytest.approx(9 * sum(weights), rel=1e-4)
    assert held.state_dict()["0"][:2] == [4.0, 6.0]  # a limit of the penalty, not of the multiplier


def test_a_smaller_scale_is_no_way_out():
    """The batch's mean gets nearer to the population's, 0, but not relative to its deviation."""
    norm = BatchNorm(3, BatchNormOptions(eps=1e-12)).double()
    held = Multipliers(model_of(norm), (0.1, 0.1), 0.1, 10.0)
    held.load_state_dict({"0": [1.0, 0.0, math.nan, math.nan]})
    x, scale = torch.randn(7, 3).double(), torch.ones((), dtype=torch.double, requires_grad=True)
    with record_gaps() as gaps:
        norm(scale * x)
    penalty = penalty_of(held, gaps)
    (gradient,) = torch.autograd.grad(penalty, scale)
    assert penalty > 1 and abs(gradient) < 1e-9 * penalty  # but for eps and rounding


def test_no_gap_has_a_gradient():
    """Where batch and population agree, the root's derivative would be infinite."""
    (norm,), held = multipliers((2,))
    held.load_state_dict({"0": [1.0, 1.0, 0.0, 0.0]})
    x = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], requires_grad=True)
    norm.population.set(torch.zeros(2), torch.ones(2))
    with record_gaps() as gaps:
        norm(x)
    penalty_of(held, gaps).backward()
    assert torch.equal(x.grad, torch.zeros(2, 2))


def fold(gaps, target, step, cap):
    """lambda and s^2 after gaps (one number an update), in Python's floats."""
    value, square = 0.0, None
    for h in gaps:
        square = h**2 if square is None else (1 - SMOOTHING) * square + SMOOTHING * h**2
        value = min(max(value + step * min(square / target**2 - 1, 1), 0.0), cap)
    return value, square


@pytest.mark.parametrize(
    "gaps",
    [
        [0.5, 0.03, 0.0301],  # far above: by a step each
        [0.011, 0.014, 0.012, 0.02],
        [0.5, 0.001, 0.0, 0.0],
        [0.011] + [0.0] * 40,  # down to 0, and no further
        [1.0] * 150,  # up to the cap
    ],
)
def test_steps(gaps):
    (norm,), held = multipliers((3,))
    for h in gaps:
        observe(held, gap(norm, h, 2 * h))
        held.step()
    value, square = fold(gaps, 0.01, 0.1, 10.0)
    # Twice the gap and twice the target. fp32; over up to 150 steps.
    expected = [value, value, square, 4 * square]
    assert held.state_dict()["0"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    (record,) = held.records()
    assert record.pop("layer") == "0"
    roots = {"mean_gap": square**0.5, "std_gap": 2 * square**0.5}
    told = {"mean_multiplier": value, "std_multiplier": value} | roots
    assert record == pytest.approx(told, rel=1e-4, abs=1e-6)


def test_an_update_has_the_mean_of_its_micro_batches():
    (first, second), held = multipliers((3, 2))
    observe(held, gap(second, 0.05, 0.05), gap(first, 0.01, 0.02))
    observe(held, gap(first, 0.02, 0.06))  # LayerDrop: without the second
    held.step()
    state = held.state_dict()
    assert state["0"][2:] == pytest.approx([0.00025, 0.002], rel=1e-3)  # of squares
    assert state["1"][2:] == pytest.approx([0.0025, 0.0025], rel=1e-3)


def test_a_norm_that_runs_twice_in_a_forward_is_seen_twice():
    (norm,), held = multipliers((3,))
    observe(held, gap(norm, 0.01, 0.0), gap(norm, 0.03, 0.0))
    held.step()
    assert held.state_dict()["0"][2] == pytest.approx(0.0005, rel=1e-3)


@pytest.mark.parametrize("kind", ["dropped", "without tokens", "not finite"])
def test_what_was_not_seen_does_not_move(kind):
    (first, second), held = multipliers((3, 2))
    observe(held, gap(first, 0.02, 0.05), gap(second, 0.02, 0.05))
    held.step()
    before = held.state_dict()
    assert before["1"][:2] == pytest.approx([0.1, 0.1], rel=1e-4)
    others = {
        "dropped": [],
        "without tokens": [gap(second, 0.0, 0.0, count=0)],
        "not finite": [gap(second, math.inf, 0.0)],
    }
    observe(held, gap(first, 0.02, 0.05), *others[kind])
    held.step()
    after = held.state_dict()
    assert after["1"] == before["1"] and after["0"][0] > before["0"][0]
    held.step()  # nothing at all was seen
    assert held.state_dict() == after


def test_forgotten_gaps_leave_no_trace():
    (norm,), held = multipliers()
    observe(held, gap(norm, 1.0, 1.0))
    held.forget()
    observe(held, gap(norm, 0.011, 0.011))
    held.step()
    assert held.state_dict()["0"] == pytest.approx([0.021, 0.0, 0.000121, 0.000121], rel=2e-3)


@pytest.mark.parametrize("length, active", [(2.0, True), (0.4, False)])
def test_dual_ascent_reaches_the_optimum(length, active):
    """Minimise ||m - a||^2 subject to ||m|| <= r: by gradient in m, by the steps in lambda.

    In C channels of deviation 1, r = t sqrt(C). Where ||a|| > r, m = r a / ||a|| and
    lambda = r (||a|| - r); elsewhere m = a and lambda = 0.
    """
    (norm,), held = multipliers((3,), target=(0.5, 1.0), step=0.03)
    held.load_state_dict({"0": [0.3, 0.3, 0.25, 1.0]})
    a = torch.tensor([2.0, -1.0, 2.0]) * length / 3
    m = a.clone().requires_grad_()
    one, zero = torch.ones(3), torch.zeros(3)
    for _ in range(500):
        made = Gap(norm, 1e-5, False, m, one, torch.tensor(9), zero, one, zero, one, 1.0)
        loss = (m - a).square().sum() + penalty_of(held, [made])
        (gradient,) = torch.autograd.grad(loss, m)
        with torch.no_grad():
            m -= 0.1 * gradient
        observe(held, made)
        held.step()
    r = 0.5 * 3**0.5
    mean, std, *_ = held.state_dict()["0"]
    # What is left of the oscillation after 500 steps.
    assert mean == pytest.approx(r * (length - r) if active else 0.0, abs=1e-2)
    torch.testing.assert_close(m.detach(), a * (r / length if active else 1), rtol=0, atol=1e-2)
    assert std == 0.0  # deviations agree: its constraint is slack


@pytest.mark.parametrize("at_once", [True, False], ids=["in one update", "by turns"])
def test_the_bound_is_on_the_mean_square_of_unequal_batches(at_once):
    """Minimise the mean of (m_k - a_k)^2 over two kinds of batches subject to E m_k^2 <= t^2.

    All m_k = c a_k with c = t / sqrt(E a_k^2), and lambda = t^2 (1 / c - 1). A bound on the mean
    gap would end at c = t / E |a_k|, here 1.4 times as much.
    """
    t, kinds = 0.5, [0.1, 2.0]
    (norm,), held = multipliers((1,), target=(t, 1.0), step=0.01)
    m = [torch.tensor([a], requires_grad=True) for a in kinds]
    one, zero = torch.ones(1), torch.zeros(1)
    for number in range(3000):
        for k in (0, 1) if at_once else (number % 2,):
            made = Gap(norm, 1e-5, False, m[k], one, torch.tensor(9), zero, one, zero, one, 1.0)
            loss = (m[k] - kinds[k]).square().sum() + penalty_of(held, [made])
            (gradient,) = torch.autograd.grad(loss, m[k])
            with torch.no_grad():
                m[k] -= 0.05 * gradient
            observe(held, made)
        held.step()
    c = t / (sum(a**2 for a in kinds) / 2) ** 0.5
    # By turns, the smoothed square and with it lambda sway by a few per cent.
    assert torch.cat(m).tolist() == pytest.approx([c * a for a in kinds], rel=0.03)
    assert held.state_dict()["0"][0] == pytest.approx(t**2 * (1 / c - 1), rel=0.03)


def test_gaps_count_once_a_hundredth_of_the_start_is_left():
    fast, slow = (BatchNorm(1, BatchNormOptions(momentum=momentum)) for momentum in (0.1, 0.02))
    for norms, momentum in (([fast], 0.1), ([fast, slow], 0.02)):
        held = Multipliers(model_of(*norms), (1.0, 1.0), 0.1, 1.0)
        assert (1 - momentum) ** held.start < 0.01 < (1 - momentum) ** (held.start / 2)


def test_state_of_other_batch_norms():
    _, held = multipliers((3, 2))
    state = {"1": [0.5, 0.25, 0.1, 0.2], "gone": [1.0, 1.0, 1.0, 1.0]}
    assert held.load_state_dict(state) == ["0"]
    found = held.state_dict()
    assert found["1"] == pytest.approx(state["1"]) and found.keys() == {"0", "1"}
    assert found["0"][:2] == [0.0, 0.0] and all(map(math.isnan, found["0"][2:]))
    assert held.records()[0]["mean_gap"] is None
