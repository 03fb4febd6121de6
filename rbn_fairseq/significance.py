"""Whether two translations of a test set differ in BLEU by more than chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

__all__ = ["Significance", "paired_bootstrap"]


@dataclass(frozen=True)
class Significance:
    """Outcome of a paired bootstrap test.

    Attributes:
        against: what it was compared with.
        bleu: that one's BLEU, in points of 100.
        p: the share of resampled test sets whose absolute difference is larger than the mean
            one by more than the real difference: sacreBLEU's one-sided p.
        samples: number of resampled test sets.
    """

    against: str
    bleu: float
    p: float
    samples: int


def paired_bootstrap(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    tokenize: Optional[str] = None,
    lang: str = "",
    against: str = "",
    samples: int = 1000,
) -> Significance:
    """Test with sacreBLEU's paired bootstrap resampling.

    Source: Koehn (2004), "Statistical Significance Tests for Machine Translation Evaluation". The
    seed is fixed, unless SACREBLEU_SEED is set.

    Args:
        hypotheses: translations, one a sentence.
        others: those that they are compared with.
        references: in the same order.
        tokenize: sacreBLEU's tokeniser, as in :func:`~rbn_fairseq.scoring.bleu`.
        lang: language of the references.
        against: name of ``others``.
        samples: number of resampled test sets; no p below ``1 / (samples + 1)``.

    Raises:
        ValueError: if the numbers of sentences differ.
    """
    if not len(hypotheses) == len(others) == len(references):
        raise ValueError(
            f"{len(hypotheses)} translations, {len(others)} others and {len(references)} "
            "references cannot be compared: the numbers must be the same."
        )
    metrics = {"BLEU": BLEU(tokenize=tokenize, trg_lang=lang, force=True)}
    systems = [("other", others), ("own", hypotheses)]
    test = PairedTest(systems, metrics, [list(references)], test_type="bs", n_samples=samples)
    other, own = test()[1]["BLEU"]
    # sacreBLEU counts differences larger than the real one: of two equal scores none is.
    p = 1.0 if own.score == other.score else own.p_value
    return Significance(against, other.score, p, samples)
