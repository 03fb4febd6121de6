"""What is remembered of Hydra's compositions is what Hydra composes."""

import pytest
from fairseq.dataclass import utils
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.experimental import compose, initialize_config_module
from omegaconf import OmegaConf

import composing
import runs

pytestmark = pytest.mark.nightly
GIVEN = [
    (),
    ("--lr", "0.5,0.25", "--norm-encoder", "batch@0-1:layer", "--seed", 7),
    ("--lr-scheduler", "polynomial_decay", "--total-num-update", 9, "--bpe", "subword_nmt"),
    (*runs.PLAIN, "--eval-bleu", "--eval-bleu-args", '{"a": 1}'),
    (),  # what an earlier command has set does not stay
]


def settings(*given):
    arguments = runs.train_arguments("DATA", "DIRECTORY", *given)
    return OmegaConf.to_yaml(composing.options_of(arguments))


def test_they_are_hydras(monkeypatch):
    monkeypatch.setattr(utils, "compose", compose)
    hydras = [settings(*given) for given in GIVEN]
    assert len(set(hydras)) == len(GIVEN) - 1
    with composing.remembered():
        assert [settings(*given) for given in GIVEN] == hydras
        GlobalHydra.instance().clear()
        with initialize_config_module("fairseq.config"), pytest.raises(HydraException):
            utils.compose("config", overrides=["optimization.no_such_option=1"], strict=False)
