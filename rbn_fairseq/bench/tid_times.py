"""Cost of measuring during training: TID in one pass and in two, conditioning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from rbn_fairseq.bench.machine import MatrixProduct, count_flops
from rbn_fairseq.bench.rounds import FLOOR, Row, milliseconds, quartiles, take_turns
from rbn_fairseq.bench.trainers import DEFAULTS, make_trainer, train, training_dtype
from rbn_fairseq.callbacks.conditioning_monitor import ConditioningConfig
from rbn_fairseq.callbacks.tid_monitor import TIDMonitorConfig
from rbn_fairseq.diagnostics import batch_norms, population
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.measuring.tid_records import How, measure_layers, norm_records

__all__ = ["time_measuring", "total_costs"]

_UPDATE, _CONDITIONED, _ONE, _TWO = "update", "update with conditioning", "one pass", "two passes"


def _one_pass(model: Any, dataset: Any, batches: Sequence[Any]) -> None:
    layers = measure_layers(EncoderDecoder(), model, dataset, batches)
    norm_records(layers, 1, 1, How(batches=len(batches)))


def _two_passes(model: Any, dataset: Any, batches: Sequence[Any]) -> None:
    """Measure as the paper does: one epoch estimates the population, another compares."""
    first = measure_layers(EncoderDecoder(), model, dataset, batches)
    populations = {name: population(moments) for name, moments in first.items()}
    for name, moments in measure_layers(EncoderDecoder(), model, dataset, batches).items():
        mean, var = populations[name]
        (moments.mean - mean).norm(dim=1).mean() / var.sqrt().norm()
        (moments.var.sqrt() - var.sqrt()).norm(dim=1).mean() / var.sqrt().norm()


def time_measuring(
    data: str,
    arguments: Sequence[str] = (*DEFAULTS.split(), "--norm-encoder", "batch"),
    rounds: int = 10,
    batches: int = 20,
    device: str = "cpu",
    threads: int = 1,
) -> list[Row]:
    """Train and measure in turn, on the same batches, and add up an epoch of each.

    Batches for measuring are collated within the time, those for training before it.

    Args:
        data: directory that fairseq-preprocess filled.
        arguments: fairseq-train's options; the plan must have batch norms.
        rounds: how often everything has its turn; one more warms up.
        batches: a turn's, drawn uniformly from an epoch.
        device: ``cpu`` or ``cuda``.
        threads: of torch, as they are set.

    Raises:
        ValueError: if fairseq-train does not take the options, or there is no batch norm.
    """
    plain = make_trainer(data, arguments, device)
    if not batch_norms(plain.model):
        raise ValueError("The model has no batch norm to measure. Add --norm-encoder batch.")
    iterator = plain.get_train_iterator(epoch=1)
    dataset = plain.task.dataset(plain.cfg.dataset.train_subset)
    drawn = draw_batches(iterator.frozen_batches, batches, plain.cfg.common.seed)
    samples = list(collate(dataset, drawn, plain.model))
    with TemporaryDirectory() as directory:
        always = ("--conditioning-interval", "1", "--save-dir", directory)
        watched = make_trainer(data, [*arguments, *always], device)
        actions: dict[str, Callable[[], None]] = {
            _UPDATE: partial(train, plain, samples),
            _CONDITIONED: partial(train, watched, samples),
            _ONE: partial(_one_pass, plain.model, dataset, drawn),
            _TWO: partial(_two_passes, plain.model, dataset, drawn),
        }
        floor = partial(
            MatrixProduct(device, next(plain.model.parameters()).dtype).milliseconds,
            count_flops(actions[_ONE]),
        )
        turns = {name: partial(milliseconds, action, device) for name, action in actions.items()}
        timings = take_turns(turns | {FLOOR: floor}, rounds, "training and measuring")
    per_batch = [{name: ms / len(drawn) for name, ms in times.items()} for times in timings]
    return total_costs(
        per_batch,
        len(iterator.frozen_batches),
        norm=plain.cfg.model.norm_encoder,
        device=device,
        threads=threads,
        dtype=training_dtype(plain.cfg),
    )


def total_costs(rounds: Sequence[Mapping[str, float]], epoch: int, **fields: Any) -> list[Row]:
    """Turn milliseconds per batch into those of an epoch, as parts of the epoch's training.

    The first row is that of training itself; the last the ratio of one pass to two.

    Args:
        rounds: milliseconds per batch by name.
        epoch: updates of an epoch.
        fields: shared by all rows.
    """
    interval = ConditioningConfig.conditioning_interval
    sample = min(TIDMonitorConfig.tid_batches, epoch)

    def cost(case: str, part: Callable[[Mapping[str, float]], float], whole: str = _UPDATE) -> Row:
        low, share, high = quartiles([part(times) / times[whole] for times in rounds])
        _, ms, _ = quartiles([part(times) for times in rounds])
        about = {"bench": "tid", "case": case, "n": len(rounds), **fields}
        return Row(ms=ms * epoch, share=share, spread=(low, high), **about)

    def one_pass(case: str, share: float = 1.0) -> Row:
        _, ratio, _ = quartiles([times[_ONE] / times[FLOOR] for times in rounds])
        row = cost(case, lambda times: times[_ONE] * share)
        return replace(row, floor_ratio=ratio, floor="the matrix products of one pass")

    return [
        cost(f"training, {epoch} updates", lambda times: times[_UPDATE]),
        one_pass(f"TID of {sample} batches (default)", sample / epoch),
        one_pass("TID of all, one pass"),
        cost("TID of all, two passes", lambda times: times[_TWO]),
        cost(
            f"conditioning every {interval} updates",
            lambda times: (times[_CONDITIONED] - times[_UPDATE]) / interval,
        ),
        cost("one pass / two", lambda times: times[_ONE], _TWO),
    ]
