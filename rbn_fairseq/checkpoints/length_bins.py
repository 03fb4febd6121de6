"""Bins of sentence lengths for trained models."""

from typing import Optional

import numpy as np

from rbn_fairseq.checkpoints.session import Session
from rbn_fairseq.models.length_bins import encoder_batch_norms, set_length_bins
from rbn_fairseq.norms import BatchNorm, LengthBins, cut_lengths
from rbn_fairseq.norms.lengths import RULES, check_rule
from rbn_fairseq.tasks.length_bins import batched_lengths, warn_of_thin_bins

__all__ = ["bins_to_compare", "check_length_bins", "give_length_bins"]


def check_length_bins(number: Optional[int], rule: str) -> None:
    """Refuse edges that do not go with a number of bins.

    Raises:
        ValueError: naming the options.
    """
    if number is None and rule != RULES[0]:
        raise ValueError(f"--length-edges {rule} goes with --length-bins: say how many bins.")
    try:
        check_rule(rule, number or 1)
    except ValueError as error:
        raise ValueError(f"--length-edges: {error}") from None


def _cut(lengths: np.ndarray, number: int, rule: str) -> Optional[LengthBins]:
    try:
        return cut_lengths(lengths, number, rule) if number > 1 else None
    except ValueError as error:
        given = "edges" if rule not in RULES else "bins"
        raise ValueError(f"--length-{given}: {error}") from None


def bins_to_compare(session: Session, number: int, rule: str) -> Optional[LengthBins]:
    """Cut the training lengths into bins, fewer where there are not so many different ones.

    Returns:
        The bins; ``None`` for one, and where the encoder has no norm that could have them.
    """
    lengths = batched_lengths(session.iterator, session.dataset)
    if rule in RULES:
        number = min(number, len(np.unique(lengths)))
    return _cut(lengths, number, rule) if encoder_batch_norms(session.model) else None


def give_length_bins(session: Session, number: int, rule: str) -> Optional[LengthBins]:
    """Give the encoder's batch norms bins of sentence lengths, empty, in place.

    Args:
        session: the model and its training data.
        number: of bins; 1 = ordinary batch norms.
        rule: where they end, see :func:`~rbn_fairseq.norms.cut_lengths`.

    Returns:
        The bins; ``None`` for one.

    Raises:
        ValueError: if the encoder has no batch norm, the decoder has one, or the lengths cannot be
            cut like that.
    """
    model = session.model
    if number > 1 and any(type(part) is BatchNorm for part in model.decoder.modules()):
        raise ValueError(
            "--length-bins: the decoder has batch norms, too, and while a translation is made its "
            "length is not known yet. Only models with batch norms in the encoder alone can have "
            "bins."
        )
    if not encoder_batch_norms(model):
        raise ValueError(
            "--length-bins: the encoder has no `batch` norm, and other norms' statistics are not "
            "kept by length."
        )
    lengths = batched_lengths(session.iterator, session.dataset)
    bins = _cut(lengths, number, rule)
    if bins is not None:
        warn_of_thin_bins(bins, lengths)
    set_length_bins(model, bins)
    return bins
