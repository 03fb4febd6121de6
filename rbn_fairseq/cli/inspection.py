"""Findings of `rbn doctor` in checkpoints and data; nothing of a file is run."""

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary, data_utils
from torch import Tensor

from rbn_fairseq.checkpoints.files import has_norms, plain_settings, read_checkpoint
from rbn_fairseq.measuring.data_bin import check_data, fingerprint
from rbn_fairseq.models.state_dicts import describe_plans

_STATISTICS = ".population."
_EDGES = f"{_STATISTICS}edges"

Findings = Iterator[tuple[str, str]]  # kind (ok, note, problem) and text


def check_checkpoint(path: Path) -> Generator[tuple[str, str], None, Optional[dict[str, Any]]]:
    """Yield findings about a file; return its content if it is a checkpoint of this plugin."""
    try:
        state = read_checkpoint(path)
    except Exception as error:  # a damaged pickle may raise anything
        yield "problem", f"checkpoint `{path}` cannot be read: {error}"
        return None
    cfg, args = plain_settings(state.get("cfg")), plain_settings(state.get("args"))
    model = plain_settings(cfg.get("model")) or args
    name = str(model.get("_name") or model.get("arch") or "unknown")
    ours = has_norms(model)
    plans = f", {describe_plans(model)}" if ours else ""
    history = state.get("optimizer_history") or [{}]
    updates = plain_settings(history[-1]).get("num_updates", "?")
    yield "ok", f"checkpoint `{path}`: {name}{plans}, {updates} updates"
    yield from _check_weights(plain_settings(state["model"]))
    origin = _origin(plain_settings(state.get("rbn_fairseq")))
    if origin:
        yield "note", "; ".join(origin)
    if not ours:
        yield (
            "note",
            "it was made without this plugin: `rbn generate` translates with it, and `rbn train "
            "--init-from FILE` begins with its weights, if it is fairseq's `transformer`.",
        )
    return state if ours and "task" in cfg else None


def _check_weights(model: Mapping[str, Any]) -> Findings:
    tensors = {name: value for name, value in model.items() if isinstance(value, Tensor)}
    broken = [
        name
        for name, value in tensors.items()
        if not (value.isfinite().all() or name.endswith("._float_tensor"))  # fairseq's, of no use
    ]
    weights = [value for name, value in tensors.items() if _STATISTICS not in name]
    norms = {name.partition(_STATISTICS)[0] for name in tensors if _STATISTICS in name}
    bins = {len(value) - 1 for name, value in tensors.items() if name.endswith(_EDGES)}
    by_length = "".join(f", some for {number} bins of sentence lengths" for number in bins)
    kinds = ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in weights}))
    text = (
        f"{sum(value.numel() for value in weights):,} parameters in {len(weights)} tensors of "
        f"{kinds or 'no dtype'}; running statistics of {len(norms)} norms{by_length}"
    )
    if not broken:
        yield "ok", f"{text}; all finite"
        return
    yield (
        "problem",
        f"{text}; not finite: {broken[0]} ({len(broken)} tensors). The training diverged before it "
        "was saved: use an earlier checkpoint.",
    )


def _origin(note: Mapping[str, Any]) -> list[str]:
    """Describe what commands of `rbn` made of a checkpoint, by the note that they leave in it."""
    recalibrated = plain_settings(note.get("recalibrated"))
    facts = []
    if isinstance(note.get("averaged"), list):
        facts.append(f"averaged from {len(note['averaged'])} checkpoints")
    if "moving_average" in note:
        facts.append("moving average of the weights of one training")
    if "batches" in recalibrated:
        how = " with dropout" if recalibrated.get("dropout") else ""
        facts.append(f"running statistics estimated from {recalibrated['batches']} batches{how}")
    elif facts:
        facts.append("running statistics, if any, are averages, too: see `rbn recalibrate`")
    match note.get("folded"):
        case {"vanished": list(vanished), "left": list(left)}:
            facts.append(
                f"folded: {len(vanished)} norms are in linear layers, {len(left)} are one "
                "multiply-add; it is for translating alone"
            )
    return facts


def check_data_directory(
    data: Path, state: Optional[dict[str, Any]], first: Optional[dict[str, Dictionary]] = None
) -> Generator[tuple[str, str], None, dict[str, Dictionary]]:
    """Yield findings about a data directory: dictionaries, pairs, and whether a checkpoint fits.

    Args:
        data: the directory.
        state: content of the checkpoint; ``None`` without one.
        first: dictionaries of the first of several directories, for another, which has training
            data alone; ``None`` for the first.

    Returns:
        The dictionaries by language, ``""`` where there are none.
    """
    dictionaries, pairs = dict(first or {}), {}
    monolingual = "" in dictionaries or (not first and (data / "dict.txt").is_file())
    pattern = "dict.txt" if monolingual else "dict.*.txt"
    try:
        if first is None or not data.is_dir():
            check_data(str(data), [pattern])
    except ValueError as error:
        yield "problem", str(error)
        return dictionaries
    try:
        for path in sorted(data.glob(pattern)):
            language = path.name.removeprefix("dict.").removesuffix("txt").removesuffix(".")
            dictionaries[language] = Dictionary.load(str(path))
        for path in sorted(data.glob("*.idx" if monolingual else "*.*-*.*.idx")):
            part, _, language = path.stem.rpartition(".")
            if monolingual:
                part, language = language, ""
            prefix = str(path.with_suffix(""))
            if not path.with_suffix(".bin").stat().st_size:
                yield (
                    "problem",
                    f"`{path.with_suffix('.bin')}` has no sentences: its text was empty, or the "
                    "file was cut off. Make it again.",
                )
                continue
            sentences = data_utils.load_indexed_dataset(prefix, dictionaries[language])
            sentences[len(sentences) - 1]  # a truncated file lacks it
            pairs.setdefault(part, {})[language] = len(sentences)
    except Exception as error:  # of many kinds: whatever a damaged file makes fairseq and numpy say
        yield "problem", f"`{path}` cannot be read ({error}): make the data again."
        return dictionaries
    sizes = ", ".join(f"{lang} {len(words)} types".strip() for lang, words in dictionaries.items())
    yield "ok", f"data `{data}`: {sizes}"
    for part, numbers in pairs.items():
        text = f"{part} has " + " and ".join(f"{n:,} of {lang}" for lang, n in numbers.items())
        if monolingual:
            yield "ok", f"{part} has {numbers['']:,} lines"
        elif len(numbers) == 2 and len(set(numbers.values())) == 1:
            yield "ok", text
        else:
            yield "problem", f"{text}, which are no pairs: make it again."
    wanted = {"train", "valid"} if first is None else {"train"}
    for split in sorted(wanted - {part.partition(".")[0] for part in pairs}):
        yield "problem", f"no part `{split}`: fairseq-preprocess --{split}pref makes it."
    marks = {fingerprint(words) for words in dictionaries.values()}
    theirs = plain_settings((state or {}).get("task_state")).get("dictionaries")
    if first and marks != {fingerprint(words) for words in first.values()}:
        yield (
            "problem",
            f"the dictionaries of `{data}` are not those of the first directory, by which all are "
            "read: make it with them (fairseq-preprocess --srcdict, --tgtdict).",
        )
    elif theirs and not {*theirs} <= marks:
        yield "problem", "the data's dictionaries are not those that the checkpoint was trained on."
    elif state is not None:
        yield "ok", "data and checkpoint fit each other"
    return dictionaries
