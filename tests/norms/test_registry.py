"""The registry: every entry builds a norm; compositions apply left to right."""

import dataclasses

import pytest
import torch
from torch import nn

from rbn_fairseq.norms import (
    NORMS,
    BatchNorm,
    BatchNormOptions,
    LayerNorm,
    LayerNormOptions,
    Norm,
    NormOptions,
    NormPlace,
    ValidTokens,
    build_norm,
    has_batch_norm,
)


@dataclasses.dataclass(frozen=True)
class Options(NormOptions):
    factor: float = 2.0


class Probe(Norm):
    """``factor * x + 1``, and a memory of the tokens it was given."""

    options_type = Options

    @classmethod
    def build(cls, place, options):
        return cls(place, options)

    def __init__(self, place, options):
        super().__init__()
        self.place, self.factor = place, options.factor

    def forward(self, x, tokens=None):
        self.tokens = tokens
        return self.factor * x + 1


@pytest.fixture
def probes(monkeypatch):
    for name in ("one", "two"):
        monkeypatch.setitem(NORMS, name, Probe)


@pytest.mark.parametrize("name", NORMS)
def test_every_entry_says_what_it_is(name):
    entry = NORMS[name]
    assert entry.name == name and entry.summary and entry.source
    assert entry.options_type is NormOptions or entry.options_type.norm == name
    assert all(field.metadata["help"] for field in dataclasses.fields(entry.options_type))


def test_options_and_sync_reach_the_norm():
    options = {"batch": BatchNormOptions(momentum=0.5), "layer": LayerNormOptions(eps=0.5)}
    place = NormPlace(3, sync=True)
    batch, layer = (build_norm([name], place, options) for name in ("batch", "layer"))
    assert isinstance(batch, BatchNorm) and isinstance(layer, LayerNorm)
    assert (batch.options.momentum, batch.population.momentum, batch.sync) == (0.5, 0.5, True)
    assert layer.eps == 0.5


def test_composition_applies_left_to_right_and_passes_tokens(probes):
    place = NormPlace(3, heads=7, sync=True)
    norm = build_norm(["one", "two"], place, {"one": Options(3.0), "two": Options(5.0)})
    x, tokens = torch.randn(4, 2, 3), ValidTokens(torch.ones(4, 2, dtype=torch.bool))
    assert torch.equal(norm(x, tokens), 5 * (3 * x + 1) + 1)
    assert [(part.factor, part.place) for part in norm] == [(3, place), (5, place)]
    assert all(part.tokens is tokens for part in norm)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["batch"], True),
        (["layer"], False),
        (["layer", "batch"], True),
        (["layer", "layer"], False),
    ],
)
def test_has_batch_norm(names, expected):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(build_norm(names, NormPlace(3), {})))
    assert has_batch_norm(model) is expected
