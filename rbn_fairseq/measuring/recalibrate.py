"""Population statistics of a checkpoint, estimated anew on training data."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch

from rbn_fairseq.checkpoints.files import drop_moving_average
from rbn_fairseq.diagnostics import recalibrate
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.measuring.bins import give_length_bins
from rbn_fairseq.measuring.session import Session
from rbn_fairseq.models.placing import encoder_batch_norms
from rbn_fairseq.norms import LengthBins, split_statistics

__all__ = ["recalibrate_state"]


def recalibrate_state(
    session: Session,
    state: dict[str, Any],
    number: int,
    seed: int,
    population: str,
    length_bins: Optional[int],
    dropout: bool,
    progress: Callable[[Sequence[Any]], Iterable[Any]],
) -> Optional[LengthBins]:
    """Estimate the population statistics of a checkpoint's weights, in place.

    The state keeps a note of how. If its norms get other bins, the moving average of
    ``--store-ema`` goes, which has not these.

    Args:
        session: of this checkpoint; its model gets the statistics, too.
        state: the checkpoint's content, whose weights are the session's.
        number: of training batches to measure on; 0 = all.
        seed: of their draw; with dropout, also torch's from here on.
        population: the estimate, one of ``ESTIMATES``.
        length_bins: number of bins of sentence lengths; ``None`` = those that it has.
        dropout: leave it on meanwhile.
        progress: wraps the batches, to show how far it is.

    Returns:
        The new bins, if there are any.

    Raises:
        ValueError: of :func:`~rbn_fairseq.measuring.bins.give_length_bins`.
    """
    model, bins = session.model, None
    if length_bins is not None:
        bins = give_length_bins(session, length_bins)
        names = {norm.name for norm in encoder_batch_norms(model).values()}
        options = {f"norm_{name}_length_bins": length_bins for name in names}
        state["cfg"]["model"] = {**state["cfg"]["model"], **options}
        drop_moving_average(state)
    batches = draw_batches(session.iterator.frozen_batches, number, seed)
    samples = collate(session.dataset, progress(batches), model)
    if dropout:
        torch.manual_seed(seed)  # for its masks
    recalibrate(model, samples, session.task.adapter.run_norms, population, dropout)
    weights, _ = split_statistics(state["model"])
    _, statistics = split_statistics(model.state_dict())
    state["model"] = weights | {name: value.cpu() for name, value in statistics.items()}
    note = {"batches": len(batches), "seed": seed, "population": population}
    if length_bins is not None:
        note["length_bins"] = length_bins
    if dropout:
        note["dropout"] = True
    state["rbn_fairseq"] = {**state.get("rbn_fairseq", {}), "recalibrated": note}
    return bins
