"""Batch norms of one's own in a model: bins of lengths, and what may be recomputed."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rbn_fairseq.models.placing import binned, encoder_batch_norms
from rbn_fairseq.models.state_dicts import refuse_lost_length_bins
from rbn_fairseq.norms import NORMS, BatchNorm, BatchNormOptions, BatchRenorm
from rbn_fairseq.norms.options import option
from small_models import build


class Mine(BatchNorm):
    """A norm of one's own, as docs/adding-a-norm.md has it."""

    name = "mine"

    def __init__(self, channels, options=None, sync=False):
        super().__init__(channels, options, sync)
        self.gain = nn.Linear(1, 1, bias=False)

    def _affine(self, batch):
        return self.weight * self.gain.weight[0], self.bias


class Plain(Mine):
    """Whose map behind the normalisation reads no running statistics."""

    repeatable = True

    def _affine(self, batch):
        return super()._affine(batch)


def test_bins_of_a_norm_of_ones_own():
    model = build(norm_encoder="batch")
    names = encoder_batch_norms(model)
    for name, norm in names.items():
        model.set_submodule(name, Mine(norm.weight.numel(), BatchNormOptions(length_bins=2)))
    before = encoder_batch_norms(model)
    assert before.keys() == names.keys() and len(names) == 4
    with binned(model, None):
        for name, norm in encoder_batch_norms(model).items():
            assert type(norm) is Mine and not norm.by_length and norm.gain is before[name].gain
            assert norm.options.length_bins == 1 and norm.weight is before[name].weight
            assert set(norm.state_dict()) == set(Mine(1).state_dict())
            for mine, given in zip(
                norm.population.get(), before[name].population.get(), strict=True
            ):
                assert torch.equal(mine, given)
    assert encoder_batch_norms(model) == before
    norms = BatchNorm(3), Mine(3), Plain(3), BatchRenorm(3)
    assert [norm.repeatable for norm in norms] == [True, False, True, False]


def test_bins_of_a_norm_of_ones_own_are_not_lost(tmp_path, monkeypatch):
    monkeypatch.setitem(NORMS, "mine", Mine)
    state = {"encoder.layers.0.final_layer_norm.population.edges": torch.zeros(9)}
    refuse_lost_length_bins(tmp_path, state, SimpleNamespace(norm_mine_length_bins=8))
    with pytest.raises(ValueError, match="length-bins 8, which would be lost"):
        refuse_lost_length_bins(tmp_path, state, SimpleNamespace(norm_mine_length_bins=1))


def test_options_of_a_norm_of_ones_own():
    """Also without the package's way of building norms."""

    @dataclass(frozen=True)
    class ShiftOptions(BatchNormOptions, norm="shift"):
        shift: float = option(2.0, "added to the bias", range="(-inf, inf)")

    class Shifted(BatchNorm):
        options_type = ShiftOptions

        def _affine(self, batch):
            return self.weight, self.bias + self.options.shift

    x = torch.randn(7, 3)
    torch.testing.assert_close(Shifted(3)(x), BatchNorm(3)(x) + 2)
