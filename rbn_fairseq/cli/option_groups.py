"""The plugin's options of a training, and the component that each comes with."""

import dataclasses
from typing import Any, NamedTuple

__all__ = ["Group", "groups"]


class Group(NamedTuple):
    """Options that come with one of fairseq's components.

    Attributes:
        title: what they are about.
        owner: what has to be given so that fairseq knows them.
        configs: their dataclasses.
    """

    title: str
    owner: str
    configs: tuple[type[Any], ...]

    def options(self) -> list[str]:
        """Return their names on the command line; a field without a help text is no option."""
        return [
            "--" + item.name.replace("_", "-")
            for config in self.configs
            for item in dataclasses.fields(config)
            if item.metadata.get("help")
        ]


def groups() -> list[Group]:
    """Return all options, with those of norms that a user registered."""
    from fairseq.dataclass import FairseqDataclass

    from rbn_fairseq.callbacks.base import options_of
    from rbn_fairseq.criterions.options import RBNPenaltyConfig
    from rbn_fairseq.models.config import norm_fields
    from rbn_fairseq.tasks.translation_rbn import CALLBACKS

    norms = dataclasses.make_dataclass("norms", [*norm_fields()], bases=(FairseqDataclass,))
    return [
        Group("norms", "--arch rbn_transformer...", (norms,)),
        Group("penalty", "--criterion label_smoothed_cross_entropy_rbn", (RBNPenaltyConfig,)),
        Group("training", "--task translation_rbn", options_of(CALLBACKS)),
    ]
