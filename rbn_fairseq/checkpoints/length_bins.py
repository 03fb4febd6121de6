"""Bins of sentence lengths for trained models."""

from typing import Any, Optional

from rbn_fairseq.checkpoints.session import Session
from rbn_fairseq.models.length_bins import set_length_bins
from rbn_fairseq.norms import BatchNorm
from rbn_fairseq.norms.lengths import check_rule
from rbn_fairseq.tasks.length_bins import training_bins

__all__ = ["check_length_bins", "give_length_bins"]


def check_length_bins(number: Optional[int], rule: str) -> None:
    """Refuse edges that do not go with a number of bins.

    Raises:
        ValueError: naming the options.
    """
    try:
        check_rule(rule, number or 1)
    except ValueError as error:
        if number is None:
            raise ValueError("--length-edges goes with --length-bins.") from None
        raise ValueError(f"--length-edges: {error}") from None


def give_length_bins(session: Session, number: int, rule: str) -> dict[str, Any]:
    """Give the encoder's batch norms bins of sentence lengths, empty, in place.

    Args:
        session: the model and its training data.
        number: of bins; 1 = ordinary batch norms.
        rule: where they end, see :func:`~rbn_fairseq.norms.cut_lengths`.

    Returns:
        What the model's configuration now says otherwise.

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
    bins = None
    if number > 1:
        bins = training_bins(session.iterator, session.dataset, number, rule)
    if not set_length_bins(model, bins):
        raise ValueError(
            "--length-bins: the encoder has no `batch` norm, and other norms' statistics are not "
            "kept by length."
        )
    return {"norm_batch_length_bins": number, "norm_batch_length_edges": rule}
