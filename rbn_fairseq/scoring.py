"""BLEU of the output of fairseq-generate, and whether two systems differ in it."""

import ast
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from sacremoses import MosesDetokenizer

from rbn_fairseq.corpora.text import read_lines

__all__ = [
    "Score", "Significance", "bleu", "detokenise", "fetch_references", "paired_bootstrap",
    "read_generated", "read_search", "split_compounds",
]  # fmt: skip

logger = logging.getLogger(__name__)

# What shapes the search, of the settings that fairseq-generate logs.
_SEARCH = (
    "beam", "lenpen", "max_len_a", "max_len_b", "min_len", "unkpen", "unnormalized",
    "match_source_len", "prefix_size", "no_repeat_ngram_size", "sampling", "sampling_topk",
    "sampling_topp", "temperature", "constraints", "diverse_beam_groups", "diversity_rate",
    "lm_path", "lm_weight", "replace_unk", "retain_dropout", "no_early_stop",
)  # fmt: skip
_PIECE = re.compile(r"\S+@@(?= |$)|▁\S*")  # of subword-nmt, of SentencePiece


@dataclass(frozen=True)
class Score:
    """BLEU in points of 100, its brevity penalty, sacreBLEU's signature and the test's size."""

    bleu: float
    brevity_penalty: float
    signature: str
    sentences: int


@dataclass(frozen=True)
class Significance:
    """Outcome of a paired bootstrap test.

    Attributes:
        bleu: BLEU of what it was compared with, in points of 100.
        p: the share of resampled test sets whose absolute difference is larger than the mean
            one by more than the real difference: sacreBLEU's one-sided p.
        samples: number of resampled test sets.
    """

    bleu: float
    p: float
    samples: int


def read_generated(path: Path, references: bool = True) -> tuple[list[str], list[str]]:
    """Read references and best hypotheses of fairseq-generate, ordered by the sentences' numbers.

    Without ``references`` there may be none: they are empty then. Warns where hypotheses are in
    subword units.

    Raises:
        ValueError: if the file is missing, or lacks a sentence, its reference or its hypothesis
            (the command was stopped, or the target side is not in the data).
    """
    fields: dict[int, dict[str, str]] = {}
    for line in read_lines(path):
        match = re.match(r"([TD])-(\d+)\t(.*)", line)
        if match:
            kind, index, rest = match.groups()
            text = rest.partition("\t")[2] if kind == "D" else rest  # D: score, then text
            fields.setdefault(int(index), {}).setdefault(kind, text)
    if not fields:
        raise ValueError(f"`{path}` holds no translations: is it the output of fairseq-generate?")
    for index in range(max(fields) + 1):
        found = fields.get(index, {})
        if "D" not in found:
            raise ValueError(
                f"`{path}` lacks D-{index}, the sentence's hypothesis. Was fairseq-generate "
                "stopped, or did it leave sentences out?"
            )
        if references and "T" not in found:
            raise ValueError(
                f"`{path}` lacks T-{index}, the sentence's reference: the data have no target "
                "side, say. Give --reference."
            )
    ordered = [fields[index] for index in sorted(fields)]
    hypotheses = [kinds["D"] for kinds in ordered]
    piece = next(filter(None, map(_PIECE.search, hypotheses)), None)
    if piece:
        logger.warning(
            "`%s` is in subword units, such as `%s`: scores over them cannot be compared with "
            "scores over words. Generate with --remove-bpe (or --remove-bpe sentencepiece).",
            path,
            piece[0],
        )
    return [kinds.get("T", "") for kinds in ordered], hypotheses


def read_search(path: Path) -> str:
    """Read how fairseq-generate searched, such as ``beam 5, lenpen 0.6``; empty where not logged.

    Settings that are 0, off (-1) or none are left out.
    """
    for line in read_lines(path):
        if logged := re.search(r"\{'_name': None, 'common': .*\}$", line):
            with suppress(ValueError, SyntaxError, KeyError):
                settings = ast.literal_eval(logged[0])["generation"]
                values = {name: settings.get(name) for name in _SEARCH}
                told = {name: value for name, value in values.items() if value not in (None, 0, -1)}
                return ", ".join(
                    f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                    for name, value in told.items()
                )
    return ""


def _language(lang: str) -> str:
    """Return the code by which sacreBLEU and Moses know a language."""
    code = re.split("[-_]", lang)[0]
    return {"zho": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}.get(code, code)


def detokenise(sentences: Sequence[str], lang: str) -> list[str]:
    """Undo Moses' tokenisation.

    Raises:
        ValueError: if ``lang`` is no code of a language, which Moses would take for any other.
    """
    if not re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", lang):
        raise ValueError(f"--lang must be the code of a language such as en, but is `{lang}`.")
    moses = MosesDetokenizer(lang=_language(lang))
    return [moses.detokenize(sentence.split()) for sentence in sentences]


def split_compounds(sentences: Sequence[str]) -> list[str]:
    """Split words at hyphens: ``a-b`` becomes ``a ##AT##-##AT## b``.

    So was tokenised BLEU for WMT En-De counted in the line of work from "Attention Is All You
    Need" on; it is higher than without.
    """
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", sentence) for sentence in sentences]


def fetch_references(test_set: str, language_pair: str) -> list[str]:
    """Return the references of a test set of sacreBLEU's, downloaded if need be.

    Such as ``wmt14/full`` for ``en-de``.

    Raises:
        ValueError: if sacreBLEU does not know the set or the pair, cannot download it, or has
            several references a sentence.
    """
    known = sacrebleu.DATASETS.get(test_set)
    if known is None or language_pair not in known.langpairs:
        raise ValueError(
            f"--test-set {test_set} --language-pair {language_pair}: sacreBLEU has no such test "
            "set; `sacrebleu --list` names all."
        )
    try:
        paths = sacrebleu.get_reference_files(test_set, language_pair)
    except (OSError, SystemExit) as error:  # sacreBLEU exits where a checksum is wrong
        raise ValueError(
            f"--test-set {test_set}: sacreBLEU cannot download it ({error}). Try again with a "
            "network, or give its references, not tokenised, with --raw-reference FILE."
        ) from error
    if len(paths) > 1:
        raise ValueError(
            f"--test-set {test_set}: it has {len(paths)} references a sentence, and one is scored "
            "against. Name another set, or give one of its references with --raw-reference FILE."
        )
    return list(read_lines(Path(paths[0])))


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: Optional[str] = None,
    lang: str = "",
    test_set: Optional[str] = None,
) -> Score:
    """Score a corpus with sacreBLEU.

    Args:
        hypotheses: translations, one a sentence.
        references: one a sentence, in the same order.
        tokenize: sacreBLEU's tokeniser; ``None`` = the one it has for ``lang``, for most 13a;
            ``none`` takes the words as they are, which on tokenised text is the BLEU4 of
            multi-bleu.perl and fairseq.
        lang: language of the references.
        test_set: sacreBLEU's name for the references, if it has one; goes into the signature.

    Raises:
        ValueError: if the numbers of sentences differ, or sacreBLEU lacks the language's tokeniser.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} translations cannot be scored against {len(references)} references."
        )
    try:
        metric = BLEU(tokenize=tokenize, trg_lang=_language(lang), force=True)
    except RuntimeError as error:  # a tokeniser that is not installed
        raise ValueError(f"sacreBLEU cannot score `{lang}`: {error}") from error
    score = metric.corpus_score(list(hypotheses), [list(references)])
    signature = metric.get_signature()
    signature.update("test", test_set)
    return Score(score.score, score.bp, str(signature), len(references))


def paired_bootstrap(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    tokenize: Optional[str] = None,
    lang: str = "",
    samples: int = 1000,
) -> Significance:
    """Test with sacreBLEU's paired bootstrap resampling.

    Source: Koehn (2004), "Statistical Significance Tests for Machine Translation Evaluation". The
    seed is fixed, unless SACREBLEU_SEED is set.

    Arguments are those of :func:`bleu`, and ``others``, which ``hypotheses`` are compared with. No
    p is below ``1 / (samples + 1)``.

    Raises:
        ValueError: if the numbers of sentences differ.
    """
    if not len(hypotheses) == len(others) == len(references):
        raise ValueError(
            f"{len(hypotheses)} translations, {len(others)} others and {len(references)} "
            "references cannot be compared: the numbers must be the same."
        )
    metrics = {"BLEU": BLEU(tokenize=tokenize, trg_lang=_language(lang), force=True)}
    systems = [("other", others), ("own", hypotheses)]
    test = PairedTest(systems, metrics, [list(references)], test_type="bs", n_samples=samples)
    other, tested = test()[1]["BLEU"]
    # sacreBLEU counts differences larger than the real one: of two equal scores none is.
    p = 1.0 if tested.score == other.score else tested.p_value
    return Significance(other.score, p, samples)
