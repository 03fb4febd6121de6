"""The configuration line: against what omegaconf prints of a dataclass with enumerations."""

import math
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional

import pytest
from fairseq.dataclass import ChoiceEnum
from omegaconf import OmegaConf

from rbn_fairseq.report.configuration import parse_configuration


@dataclass
class Model:
    activation: ChoiceEnum(["relu", "gelu"]) = "relu"
    population: ChoiceEnum(["mean-of-batches", "running"]) = "mean-of-batches"
    path: Optional[str] = None
    lr: list[float] = field(default_factory=lambda: [0.004, 1e-05])
    pair: str = "(0.9, 0.98)"
    quoted: str = 'it\'s "so"'
    below: float = -1.0
    flag: bool = True


@dataclass
class Root:
    _name: Optional[str] = None
    model: Model = field(default_factory=Model)


def test_what_omegaconf_prints():
    cfg = OmegaConf.structured(Root)
    assert " relu," in str(cfg) and " mean-of-batches," in str(cfg)  # bare, as in fairseq's logs
    expected = OmegaConf.to_container(cfg)
    expected["model"] = {
        name: str(value) if isinstance(value, Enum) else value
        for name, value in expected["model"].items()
    }
    assert parse_configuration(str(cfg) + "\n") == expected


def test_dictionaries_namespaces_and_infinities():
    found: Any = {
        "a": Namespace(arch="tiny", layers=2, inner=Namespace(x=[1])),
        "b": [math.inf, -math.inf],
        "c": (1, 2),
    }
    assert parse_configuration(str(found)) == {
        "a": {"arch": "tiny", "layers": 2, "inner": {"x": [1]}},
        "b": [math.inf, -math.inf],
        "c": [1, 2],
    }
    assert math.isnan(parse_configuration("{'a': nan}")["a"])


def test_nothing_is_run():
    text = "{'a': __import__('os').getcwd(), 'b': open('/nowhere')}"
    assert parse_configuration(text) == {"a": "__import__('os').getcwd()", "b": "open('/nowhere')"}


@pytest.mark.parametrize("text", ["{'_name': None, 'common': {'se", "[1, 2]", ""])
def test_half_a_line(text):
    with pytest.raises(ValueError, match="configuration"):
        parse_configuration(text)
