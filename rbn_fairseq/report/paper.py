"""What the paper reports of translation, and whether a run may be compared with it.

Source: Wang, Wu and Huang, "Understanding the Failure of Batch Normalization for Transformers in
NLP" (NeurIPS 2022), Table 2: BLEU, means of at least 3 seeds, without error bars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from rbn_fairseq.models.config import PRESETS
from rbn_fairseq.report.benchmark import PLACEMENTS, BenchmarkRun, UnscoredRun, spans
from rbn_fairseq.report.published import published

__all__ = ["BENCHMARKS", "NORMS", "OTHERS", "Benchmark", "table_order", "withheld_because"]

#: The norms of the table's rows by the scripts' names; ``rbn_official`` is RBN with the weights
#: and the convention that the authors published.
NORMS = {"ln": "LN", "bn": "BN", "rbn": "RBN", "rbn_official": "RBN (official)"}
#: The paper's others, which have a row where there are runs of them.
OTHERS = {"pn": "PN-only", "pn_ls": "PN+LS", "brn": "BRN", "mabn": "MABN"}


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the paper.

    Attributes:
        corpus: its name.
        kinds: kinds of BLEU, as ``rbn score`` calls them; the paper's comes first.
        heading: what a table calls the paper's kind.
        presets: architectures with the sizes of the paper's models, by placement.
        epochs: those averaged; ``None`` = the paper does not tell.
        updates: that the training must have had; 0 = the epochs tell.
        bleu: the paper's numbers by placement and norm. ``rbn_official`` has RBN's: which weights
            and which convention it was measured with, the paper does not tell.
        reading: what to say where its numbers are shown; empty if nothing.
    """

    corpus: str
    kinds: tuple[str, ...]
    heading: str
    presets: Mapping[str, str]
    epochs: Optional[tuple[int, ...]]
    updates: int
    bleu: Mapping[tuple[str, str], float]
    reading: str = ""


def _presets(name: str) -> dict[str, str]:
    return {"post": name, "pre": f"{name}_pre"}


def _numbers(dataset: str) -> dict[tuple[str, str], float]:
    families = NORMS | OTHERS | {"rbn_official": "RBN"}
    found = {
        (placement, norm): published().performance(f"{placement.title()}-Norm", family, dataset)
        for placement in PLACEMENTS
        for norm, family in families.items()
    }
    return {key: number for key, number in found.items() if number is not None}


#: By the name that the scripts have.
BENCHMARKS = {
    "iwslt14": Benchmark(
        corpus="IWSLT14 De-En",
        kinds=("tokenised", "sacrebleu"),
        heading="tokenised BLEU4",
        presets=_presets("rbn_transformer_iwslt_de_en"),
        epochs=tuple(range(55, 61)),
        updates=0,
        bleu=_numbers("IWSLT14"),
    ),
    "wmt16": Benchmark(
        corpus="WMT16 En-De",
        kinds=("compound_split", "tokenised", "sacrebleu"),
        heading="compound-split BLEU4",
        presets=_presets("rbn_transformer_wmt_en_de"),
        epochs=None,
        updates=100_000,
        bleu=_numbers("WMT16"),
        reading="paper: for WMT16 its text tells neither model nor recipe nor the epochs averaged; "
        "the base model and the rest are this project's reading",
    ),
}


def table_order(found: Sequence[BenchmarkRun | UnscoredRun]) -> list[tuple[str, str]]:
    """Return placements and norms in the table's order: the paper's, then others that are found."""
    main = [(placement, norm) for placement in PLACEMENTS for norm in NORMS]
    return main + sorted({(run.placement, run.norm) for run in found} - set(main))


def _data_differ(benchmark: Benchmark, run: BenchmarkRun) -> str:
    if not run.about:
        return "nothing says what the data are (no about.json beside them)"
    if run.about.get("corpus") != benchmark.corpus:
        return f"data are {run.about.get('corpus')}, not {benchmark.corpus}"
    if run.about.get("standard") is True:
        return ""
    differences = "; ".join(map(str, run.about.get("differences") or ()))
    return "data differ from the standard" + (f" ({differences})" if differences else "")


def _model_differs(benchmark: Benchmark, run: BenchmarkRun) -> str:
    preset = PRESETS[benchmark.presets[run.placement]]
    sizes = {name: size for name, size in preset.items() if "dropout" not in name}
    different = [
        f"{name} {run.settings[f'model.{name}']} instead of {size}"
        for name, size in sizes.items()
        if run.settings[f"model.{name}"] != size
    ]
    if not different:
        return ""
    more = f" and {len(different) - 1} more" if len(different) > 1 else ""
    return f"model differs ({different[0]}{more})"


def _epochs_differ(benchmark: Benchmark, run: BenchmarkRun) -> str:
    if run.updates < benchmark.updates:
        return f"{run.updates:,} updates instead of {benchmark.updates:,}"
    if benchmark.epochs is None or run.epochs == benchmark.epochs:
        return ""
    return f"epochs {spans(run.epochs)} instead of {spans(benchmark.epochs)}"


def withheld_because(benchmark: Benchmark, run: BenchmarkRun) -> list[str]:
    """Say why the paper's numbers may not stand beside a run's; empty = they may.

    They may where the data are the standard ones, the model has the sizes of the paper's and the
    averaged epochs are the paper's, as far as it tells.
    """
    reasons = (
        _data_differ(benchmark, run),
        _model_differs(benchmark, run),
        _epochs_differ(benchmark, run),
    )
    return [reason for reason in reasons if reason]
