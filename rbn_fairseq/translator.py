"""A checkpoint that translates raw sentences, split into pieces as its training data were."""

import json
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq import checkpoint_utils
from fairseq.data import encoders
from fairseq.dataclass.configs import GenerationConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf, open_dict

from rbn_fairseq.checkpoints.files import NO_EMBEDDINGS, plain_settings, read_checkpoint
from rbn_fairseq.corpora.text import lower_case
from rbn_fairseq.measuring.data_bin import check_data
from rbn_fairseq.measuring.run_file import RUN_FILE
from rbn_fairseq.pieces import CODES, EXAMPLE, PIECES, read_pieces

__all__ = ["Translator", "open_translator"]

_BATCH = 16  # sentences
_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")


class Translator(GeneratorHubInterface):
    """fairseq's interface to a model that translates, for data that may be in lower case.

    ``pieces`` say how sentences are split, by the keys of ``pieces.json``, with paths for files.
    """

    def __init__(self, cfg: Any, task: TranslationTask, model: Any, pieces: Mapping[str, Any]):
        with open_dict(cfg):
            cfg.tokenizer = cfg.bpe = None  # made below
            cfg.generation = OmegaConf.structured(GenerationConfig())
            cfg.dataset.max_tokens, cfg.dataset.batch_size = None, _BATCH
        super().__init__(cfg, task, [model])
        langs = {"source_lang": task.cfg.source_lang, "target_lang": task.cfg.target_lang}
        options = Namespace(**{"tokenizer": None, "bpe": None, **langs, **pieces})
        self.tokenizer, self.bpe = encoders.build_tokenizer(options), encoders.build_bpe(options)
        self._lowercase = bool(pieces.get("lowercase"))

    def tokenize(self, sentence: str) -> str:
        """Return the tokens of a sentence, joined by spaces."""
        tokens: str = super().tokenize(sentence)
        return lower_case(tokens) if self._lowercase else tokens

    def translate_lines(self, lines: Sequence[str], **search: float) -> tuple[list[str], list[int]]:
        """Translate sentences; of an empty one the translation is empty.

        ``search`` are options of fairseq's generation, such as ``beam``.

        Returns:
            Their translations, and the numbers of those whose pieces are all unknown.

        Raises:
            ValueError: if one is longer than the model reads.
        """
        translations = [""] * len(lines)
        pieces = {number: self.encode(line) for number, line in enumerate(lines) if line.strip()}
        longest = self.max_positions[0]
        for number, tokens in pieces.items():
            if len(tokens) > longest:
                raise ValueError(
                    f"The sentence `{lines[number][:40]}…` has {len(tokens):,} pieces, but the "
                    f"model reads at most {longest:,}. Split it into sentences."
                )
        if pieces:
            hypotheses = self.generate(list(pieces.values()), **search)
            for number, (best, *_) in zip(pieces, hypotheses, strict=True):
                translations[number] = self.decode(best["tokens"])
        unknown = self.src_dict.unk()
        return translations, [n for n, tokens in pieces.items() if (tokens[:-1] == unknown).all()]


def _find_checkpoint(run: Path) -> Path:
    if not run.is_dir():
        return run
    for name in _NAMES:
        if (run / name).is_file():
            return run / name
    raise ValueError(
        f"RUN: `{run}` has neither {_NAMES[0]} nor {_NAMES[1]}. Name the save directory of a "
        "training, or a checkpoint file."
    )


def _find_pieces(checkpoint: Path, data: Path) -> dict[str, Any]:
    """Return how the data were split, with the path of the codes, if they are still the run's.

    Raises:
        ValueError: if that is not known, or not as it was at the training's start.
    """
    pieces = read_pieces(data)
    if pieces is None:
        raise ValueError(
            f"`{data}` does not say how its text was split into pieces. `rbn prepare` writes that "
            f"into {PIECES}; for other data write it yourself: {EXAMPLE}."
        )
    try:
        run = json.loads((checkpoint.parent / RUN_FILE).read_text(encoding="utf-8"))
        trained = run["data"].get("pieces")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        trained = None
    if trained is not None and trained != pieces:
        raise ValueError(
            f"`{checkpoint}` was trained on other pieces than `{data / PIECES}` and its codes say "
            f"now: they differ from those in {RUN_FILE}. Give the data as they were with --data; "
            f"if it is {RUN_FILE} that is wrong, correct `pieces` there."
        )
    codes = CODES.get(pieces.get("bpe", ""), "")
    return {**pieces, **({codes: str(data / pieces[codes])} if codes else {})}


def open_translator(run: Path, data: Optional[Path], device: str) -> Translator:
    """Load a checkpoint with what splits sentences into its pieces.

    Of a save directory it is the best one, else the last. ``data`` is a directory, ``None`` = the
    one that the checkpoint was trained on.

    Raises:
        ValueError: if a file is missing or damaged, or it is not known how to split sentences.
    """
    path = _find_checkpoint(run)
    state = read_checkpoint(path)
    trained = (state.get("cfg") or {}).get("task") or state.get("args")  # of fairseq before 0.10
    settings = plain_settings(trained)
    name = str(settings.get("_name") or settings.get("task"))
    if not issubclass(TASK_REGISTRY.get(name, TranslationTask), TranslationTask):
        raise ValueError(
            f"`{path}` was trained for {name}, not to translate: `rbn validate` scores it."
        )
    directory = str(data or settings.get("data") or "")
    check_data(directory, way_out="Say with --data where it is now.")
    folder = Path(directory.split(os.pathsep)[0])
    pieces = _find_pieces(path, folder)
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": directory, **NO_EMBEDDINGS}
    )
    try:
        translator = Translator(cfg, task, model, pieces)
    except (OSError, RuntimeError, SystemExit) as error:  # of a file that has no codes
        codes = pieces.get(CODES.get(pieces.get("bpe", ""), ""))
        raise ValueError(
            f"`{codes}`, which `{folder / PIECES}` names, is not what {pieces.get('bpe')} reads."
        ) from error
    return translator.eval().to(device)
