"""Real batches for norms to be timed on: shapes and padding of training data."""

from pathlib import Path
from typing import Any

from torch import Tensor

from rbn_fairseq.bench.cases import Case
from rbn_fairseq.bench.training import make_trainer
from rbn_fairseq.tasks.batches import collate, sample_batches

__all__ = ["data_cases", "name_of"]

_SMALL = "--arch rbn_transformer_tiny --optimizer adam".split()


def name_of(data: Path) -> str:
    """Return what cases of a data directory are called: its name, or that around a ``bin``."""
    data = data.resolve()
    return data.parent.name if data.name in ("bin", "data-bin") else data.name


def data_cases(data: str, name: str, max_tokens: int, batches: int, seed: int) -> list[Case]:
    """Return batches of training data as fairseq makes them, source and target side.

    Args:
        data: directory that fairseq-preprocess filled.
        name: of the data, for the cases.
        max_tokens: fairseq's limit for a batch, in tokens of either side.
        batches: how many, drawn uniformly from an epoch; 0 = all.
        seed: of the draw.
    """
    trainer: Any = make_trainer(data, [*_SMALL, "--max-tokens", str(max_tokens)], "cpu")
    iterator = trainer.get_train_iterator(epoch=1)
    dataset = trainer.task.dataset(trainer.cfg.dataset.train_subset)
    drawn = sample_batches(iterator, batches, seed)
    sides: dict[str, list[Tensor]] = {"source": [], "target": []}
    for sample in collate(dataset, drawn, trainer.model):
        inputs = sample["net_input"]
        sides["source"].append(inputs["src_tokens"].eq(dataset.src_dict.pad()))
        sides["target"].append(inputs["prev_output_tokens"].eq(dataset.tgt_dict.pad()))
    return [Case(f"{name}-{side}", paddings) for side, paddings in sides.items()]
