"""Bins of sentence lengths, cut by training sentences, for trained models."""

import logging
from typing import Any, Optional

import numpy as np

from rbn_fairseq.measuring.adapters import TaskAdapter
from rbn_fairseq.measuring.session import Session
from rbn_fairseq.models.placing import can_have_bins, encoder_batch_norms, set_length_bins
from rbn_fairseq.norms import LengthBins, cut_lengths, populations_by_length
from rbn_fairseq.norms.moments import process_rank

__all__ = ["bins_to_compare", "cut_bins", "give_length_bins", "sentence_lengths"]

logger = logging.getLogger(__name__)

_FEW_TOKENS = 1000


def sentence_lengths(adapter: TaskAdapter, iterator: Any) -> np.ndarray:
    """Return the source lengths of the sentences in batches, which leave out those too long."""
    batches, sizes = iterator.frozen_batches, adapter.source_lengths(iterator.dataset)
    assert sizes is not None
    return sizes[np.concatenate(batches)] if batches else np.empty(0)


def cut_bins(
    lengths: np.ndarray, number: int, option: str = "--length-bins"
) -> Optional[LengthBins]:
    """Cut training lengths into bins by :func:`~rbn_fairseq.norms.cut_lengths`.

    Warns of the bin with the fewest training tokens if they are few: the variance of a handful may
    be anything, 0 too, and inference divides by its root.

    Returns:
        The bins; ``None`` if their number is 1.

    Raises:
        ValueError: if they cannot be cut like that, naming the option or row that they are for,
            as the warning does.
    """
    if number == 1:
        return None
    try:
        bins = cut_lengths(lengths.tolist(), number)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    tokens, edges = np.histogram(lengths, bins.edges, weights=lengths)
    thinnest = int(tokens.argmin())
    if tokens[thinnest] < _FEW_TOKENS and process_rank() == 0:
        logger.warning(
            f"{option}: only {tokens[thinnest]:.0f} training tokens are in sentences of "
            f"{edges[thinnest]:g} to {edges[thinnest + 1]:g} tokens: the statistics of that bin "
            "will be poor. More sentences or fewer bins make them better."
        )
    return bins


def bins_to_compare(session: Session) -> Optional[LengthBins]:
    """Cut the training lengths into bins of equal numbers of sentences.

    Into as many as the model has, else 16; fewer where there are not so many different lengths.

    Returns:
        The bins; ``None`` for one, and where the encoder has no norm that could have them.
    """
    if not encoder_batch_norms(session.model):
        return None
    lengths = sentence_lengths(session.task.adapter, session.iterator)
    number = next((by.bins for by in populations_by_length(session.model)), 16)
    return cut_bins(lengths, min(number, len(np.unique(lengths))), "length-conditional")


def give_length_bins(session: Session, number: int) -> Optional[LengthBins]:
    """Give the encoder's batch norms bins of sentence lengths, empty, in place; return the bins.

    Args:
        session: the model and its training data.
        number: of bins; 1 = ordinary batch norms.

    Raises:
        ValueError: if the encoder has no batch norm, the decoder or a site of heads has one, the
            model was trained on batches of unlike lengths, or they cannot be cut like that.
    """
    parts = session.model.named_modules()
    norms = encoder_batch_norms(session.model)
    others = any(can_have_bins(part) and name not in norms for name, part in parts)
    if not norms or (number > 1 and others):
        raise ValueError(
            "--length-bins needs `batch` norms in the encoder and none in a decoder, nor at `qk` "
            "or `qkv`: other norms' statistics are not kept by length, a decoder does not know yet "
            "how long its output will be, and a head's rows do not tell their sentence."
        )
    if number > 1 and session.mixing != 1:
        raise ValueError(
            "--length-bins is for models trained on batches of like lengths, but this one was with "
            f"--length-mixing {session.mixing or 'random'}: by length it is far worse than without."
        )
    bins = cut_bins(sentence_lengths(session.task.adapter, session.iterator), number)
    set_length_bins(session.model, bins)
    return bins
