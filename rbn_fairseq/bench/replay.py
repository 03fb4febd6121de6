"""Real batches for norms to be timed on: lengths of the sentences of training data."""

from collections.abc import Sequence
from pathlib import Path

from fairseq import utils

from rbn_fairseq.bench.cases import Case
from rbn_fairseq.bench.training import set_up
from rbn_fairseq.measuring.batches import draw_batches

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
    cfg, task = set_up(data, [*_SMALL, "--max-tokens", str(max_tokens)], "cpu")
    task.load_dataset(cfg.dataset.train_subset)
    dataset = task.dataset(cfg.dataset.train_subset)
    # As fairseq's trainer; a model takes what its task takes.
    iterator = task.get_batch_iterator(
        dataset,
        max_tokens=max_tokens,
        max_positions=utils.resolve_max_positions(task.max_positions(), max_tokens),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
        seed=cfg.common.seed,
    )
    sides: dict[str, list[Sequence[int]]] = {"source": [], "target": []}
    for batch in draw_batches(iterator.frozen_batches, batches, seed):
        # Sorted, as the model lays out its rows.
        pairs = sorted((dataset.src_sizes[index], dataset.tgt_sizes[index]) for index in batch)
        for lengths, drawn in zip(zip(*pairs, strict=True), sides.values(), strict=True):
            drawn.append([int(length) for length in lengths])
    return [Case(f"{name}-{side}", drawn) for side, drawn in sides.items()]
