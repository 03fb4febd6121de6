"""Running statistics, against the closed form of an exponential average."""

import pytest
import torch
from torch import nn

from rbn_fairseq.norms import (
    NORMS,
    BatchNorm,
    Population,
    PopulationNorm,
    PowerNorm,
    split_statistics,
)
from rbn_fairseq.norms.moments import Moments

MEAN, VAR = torch.tensor([2.0, -1.0]), torch.tensor([4.0, 0.25])


@pytest.mark.parametrize("momentum", [0.05, 0.9, 1.0])
@pytest.mark.parametrize("steps", [1, 30])
def test_moves_as_an_exponential_average_from_mean_0_and_variance_1(momentum, steps):
    population = Population(2, momentum)
    addresses = [buffer.data_ptr() for buffer in population.buffers()]
    for _ in range(steps):
        population.update(Moments(MEAN, VAR, torch.tensor(3.0)))
    left = (1 - momentum) ** steps  # weight of the initial value
    mean, var = population.get()
    # `steps` roundings of 6e-8 each.
    torch.testing.assert_close(mean, (1 - left) * MEAN, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(var, left + (1 - left) * VAR, rtol=2e-6, atol=1e-6)
    population.set(MEAN, VAR)
    assert torch.equal(mean, MEAN) and torch.equal(var, VAR)
    assert [buffer.data_ptr() for buffer in population.buffers()] == addresses  # in place


CASTS = {
    "half": (lambda m: m.half(), torch.float32),
    "bfloat16": (lambda m: m.bfloat16(), torch.float32),
    "to(half)": (lambda m: m.to(torch.float16), torch.float32),
    "double": (lambda m: m.double(), torch.float64),
    "double, half": (lambda m: m.double().half(), torch.float32),
    "half, double": (lambda m: m.half().double(), torch.float64),
    "double, float": (lambda m: m.double().float(), torch.float32),
    "to(cpu)": (lambda m: m.to("cpu"), torch.float32),
}


@pytest.mark.parametrize(("cast", "dtype"), CASTS.values(), ids=CASTS)
def test_casts_leave_at_least_fp32(cast, dtype):
    population = Population(2, 0.05)
    mean, var = torch.tensor([1 / 3, 1e-9]), torch.tensor([1e6, 1 / 7])  # not half numbers
    population.set(mean, var)
    model = cast(torch.nn.Sequential(torch.nn.Linear(1, 1), population))
    assert [buffer.dtype for buffer in model.buffers()] == [dtype, dtype]
    assert torch.equal(population.running_mean, mean.to(dtype))
    assert torch.equal(population.running_var, var.to(dtype))


class Halves(Population):
    """Running statistics of one's own: always a half of the batch's."""

    def update(self, batch):
        self.set(batch.mean.detach() / 2, batch.var.detach() / 2)


def test_a_norm_takes_the_population_that_it_is_given():
    norm, x = BatchNorm(3, population=Halves(3, 0.05)), torch.randn(7, 3)
    norm(x)
    torch.testing.assert_close(norm.population.running_mean, x.mean(0) / 2)
    expected = (x - x.mean(0) / 2) / torch.sqrt(x.var(0, correction=0) / 2 + 1e-5)
    torch.testing.assert_close(norm.eval()(x), expected)


@pytest.mark.parametrize("kind", [n for n in NORMS.values() if issubclass(n, PopulationNorm)])
@torch.no_grad()
def test_evaluation_follows_weights_that_change_behind_autograds_back(kind):
    norm, x = kind(3), torch.arange(12.0).view(2, 2, 3)
    norm(x)
    norm.eval()(x)
    for parameter in norm.parameters():
        parameter.data.fill_(0)  # as fairseq's optimizers write
    norm.bias.data.fill_(5)
    assert torch.equal(norm(x), torch.full_like(x, 5))


@torch.no_grad()
def test_evaluation_compiles_whole():
    norm, x = BatchNorm(3).eval(), torch.arange(12.0).view(2, 2, 3)
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), norm(x))
    norm.population.set(torch.tensor([1.0, 2, 3]), torch.tensor([4.0, 5, 6]))
    assert torch.equal(compiled(x), norm(x))


def test_statistics_of_a_state_dict():
    model = nn.ModuleDict({"one": BatchNorm(2), "two": nn.Linear(2, 2), "three": PowerNorm(2)})
    rest, statistics = split_statistics(model.state_dict())
    assert {name.partition(".")[0] for name in rest} == {"one", "two", "three"}
    assert statistics.keys() == {f"{name}" for name, _ in model.named_buffers()}
