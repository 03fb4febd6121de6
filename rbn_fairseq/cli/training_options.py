"""The plugin's options of a training, which fairseq's own ``--help`` does not show."""

import argparse
import dataclasses

import typer
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

from rbn_fairseq.criterions.options import RBNPenaltyConfig
from rbn_fairseq.models.config import norm_fields
from rbn_fairseq.tasks.translation_rbn import OWN_OPTIONS

__all__ = ["options"]


def options() -> None:
    """List the plugin's options of `rbn train`, which fairseq's --help leaves out."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        add_help=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    norms = dataclasses.make_dataclass("norms", [*norm_fields()], bases=(FairseqDataclass,))
    groups = {
        "norms (--arch rbn_transformer...)": (norms,),
        "penalty (--criterion label_smoothed_cross_entropy_rbn)": (RBNPenaltyConfig,),
        "training (--task translation_rbn, which rbn train puts in)": OWN_OPTIONS,
    }
    for title, configs in groups.items():
        group = parser.add_argument_group(title)
        for config in configs:
            gen_parser_from_dataclass(group, config())
    typer.echo(parser.format_help().rstrip())
