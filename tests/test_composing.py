"""That what is remembered of Hydra's compositions is what Hydra composes."""

import pytest
from fairseq.dataclass import utils
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.experimental import compose, initialize_config_module
from omegaconf import OmegaConf

import composing
import runs


def settings(*given):
    return OmegaConf.to_yaml(
        composing.options_of(runs.train_arguments("DATA", "DIRECTORY", *given))
    )


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(utils, "compose", compose)


GIVEN = [
    (),
    ("--lr", "0.5,0.25", "--norm-encoder", "batch@0-1:layer", "--seed", 7),
    ("--lr-scheduler", "polynomial_decay", "--total-num-update", 9, "--bpe", "subword_nmt"),
    (*runs.PLAIN, "--eval-bleu", "--eval-bleu-args", '{"a": 1}'),
]


def test_are_hydras(plain):
    hydras = [settings(*given) for given in GIVEN]
    with composing.remembered():
        for given, expected in zip(GIVEN, hydras, strict=True):
            assert settings(*given) == expected
        assert settings(*GIVEN[0]) == hydras[0]  # kept by now
    assert len(set(hydras)) == len(GIVEN)


def composed(*values):
    GlobalHydra.instance().clear()
    with initialize_config_module("fairseq.config"):
        return OmegaConf.to_yaml(utils.compose("config", overrides=list(values), strict=False))


def test_values_do_not_stay(plain):
    hydras = [composed("common.seed=7"), composed()]
    with composing.remembered():
        assert [composed("common.seed=7"), composed()] == hydras
    assert hydras[0] != hydras[1]


def test_errors_are_hydras(plain):
    with pytest.raises(HydraException) as hydras:
        composed("optimization.no_such_option=1")
    with composing.remembered(), pytest.raises(HydraException) as ours:
        composed("optimization.no_such_option=1")
    assert str(ours.value) == str(hydras.value)
