"""Findings of `rbn doctor` in checkpoints and data; nothing of a file is run."""

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary, data_utils
from torch import Tensor

from rbn_fairseq.checkpoints.files import (
    has_norms,
    model_settings,
    plain_settings,
    read_checkpoint,
    updates_of,
)
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
    model = model_settings(state)
    name = model.get("_name") or model.get("arch") or "unknown"
    ours = has_norms(model)
    plans = f", {describe_plans(model)}" if ours else ""
    yield "ok", f"checkpoint `{path}`: {name}{plans}, {updates_of(state)} updates"
    yield from _check_weights(state["model"])
    if note := plain_settings(state.get("rbn_fairseq")):
        yield "note", f"made by `rbn`: {', '.join(note)}"
    if not ours:
        yield (
            "note",
            "it was made without this plugin: `rbn generate` translates with it, and `rbn train "
            "--init-from FILE` begins with its weights, if it is fairseq's `transformer`.",
        )
    return state if ours and "task" in plain_settings(state.get("cfg")) else None


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


def check_data_directory(
    data: Path, state: Optional[dict[str, Any]], first: Optional[set[str]]
) -> Generator[tuple[str, str], None, set[str]]:
    """Yield findings about a data directory: dictionaries, pairs, and whether a checkpoint fits.

    Args:
        data: the directory.
        state: content of the checkpoint; ``None`` without one.
        first: fingerprints of the dictionaries of the first of several directories, for another,
            which has training data alone; ``None`` for the first.

    Returns:
        The fingerprints of the dictionaries by which the data are read.
    """
    types, sentences, marks = {}, {}, set()
    path = data
    try:
        if first is None or not data.is_dir():
            check_data(str(data), ["dict.txt" if (data / "dict.txt").is_file() else "dict.*.txt"])
        for path in sorted(data.glob("dict*.txt")):
            dictionary = Dictionary.load(str(path))
            types[path.name] = len(dictionary)
            marks.add(fingerprint(dictionary))
        for path in sorted(data.glob("*.idx")):
            part, _, side = path.stem.rpartition(".")  # the part of one text is its `side`
            if not path.with_suffix(".bin").stat().st_size:
                yield (
                    "problem",
                    f"`{path.with_suffix('.bin')}` has no sentences: its text was empty, or the "
                    "file was cut off. Make it again.",
                )
                continue
            indexed = data_utils.load_indexed_dataset(str(path.with_suffix("")))
            indexed[len(indexed) - 1]  # a truncated file lacks it
            sentences.setdefault(part, {})[side] = len(indexed)
    except Exception as error:  # of many kinds: whatever a damaged file makes fairseq and numpy say
        yield "problem", f"`{path}` cannot be read: {error}"
        return first or marks
    yield "ok", f"data `{data}`: {', '.join(f'{name} {n} types' for name, n in types.items())}"
    for part, sides in sentences.items():
        text = f"{part or 'lines'}: {', '.join(f'{n:,} {side}' for side, n in sides.items())}"
        if not part or (len(sides) == 2 and len({*sides.values()}) == 1):
            yield "ok", text
        else:
            yield "problem", f"{text}, which are no pairs: make it again."
    parts = {
        (part or side).partition(".")[0] for part, sides in sentences.items() for side in sides
    }
    for split in ("train", "valid") if first is None else ("train",):
        if split not in parts:
            yield "problem", f"no part `{split}`: fairseq-preprocess --{split}pref makes it."
    theirs = plain_settings((state or {}).get("task_state")).get("dictionaries")
    if first is not None and not marks <= first:
        yield (
            "problem",
            f"the dictionaries of `{data}` are not those of the first directory, by which all are "
            "read: make it with them (fairseq-preprocess --srcdict, --tgtdict).",
        )
    elif theirs and not {*theirs} <= (first or marks):
        yield "problem", "the data's dictionaries are not those that the checkpoint was trained on."
    elif state is not None:
        yield "ok", "data and checkpoint fit each other"
    return first or marks
