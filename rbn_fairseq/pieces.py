"""How data were split into pieces: ``pieces.json`` beside them, and the codes of their BPE.

Its keys are fairseq's options, and ``lowercase``: ``tokenizer``, ``moses_no_dash_splits``, ``bpe``,
and ``bpe_codes`` or ``sentencepiece_model``, a file beside it.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Optional

from rbn_fairseq.writing import write_whole

__all__ = ["CODES", "EXAMPLE", "PIECES", "read_pieces", "write_pieces"]

PIECES = "pieces.json"
EXAMPLE = (
    '{"tokenizer": "moses", "lowercase": true, "bpe": "subword_nmt", "bpe_codes": "codes"} or '
    '{"bpe": "sentencepiece", "sentencepiece_model": "spm.model"}, with that file beside it; or '
    '{"tokenizer": "space"} where pieces are words'
)
#: The option of each kind of BPE that names its file.
CODES = {"subword_nmt": "bpe_codes", "sentencepiece": "sentencepiece_model"}
_CHOICES = {  # the values of every key but those that name files
    "tokenizer": ("moses", "space"),
    "moses_no_dash_splits": (True, False),
    "lowercase": (True, False),
    "bpe": tuple(CODES),
}


def write_pieces(data: Path, bpe: str, codes: Path, **others: Any) -> None:
    """Copy the codes into a data directory, and name them there with the other options."""
    shutil.copyfile(codes, data / codes.name)
    pieces = {**others, "bpe": bpe, CODES[bpe]: codes.name}
    write_whole(data / PIECES, json.dumps(pieces, indent=1) + "\n")


def read_pieces(data: Path) -> Optional[dict[str, Any]]:
    """Return a data directory's ``pieces.json``, and with it the ``sha256`` of the codes, if any.

    ``None`` if it has none.

    Raises:
        ValueError: if the file is no such description, or the codes are not there.
    """
    path = data / PIECES
    if not path.is_file():
        return None
    try:
        pieces = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`{path}` is no JSON: {error}.") from error
    wrong = _complaint(pieces)
    if wrong:
        raise ValueError(f"`{path}`: {wrong}. Expected is such as {EXAMPLE}.")
    if "bpe" not in pieces:
        return dict(pieces)
    codes = data / pieces[CODES[pieces["bpe"]]]
    if not codes.is_file():
        raise ValueError(
            f"`{path}` names `{codes.name}`, but there is no such file beside it. Put it there, or "
            "correct the name."
        )
    return {**pieces, "sha256": hashlib.sha256(codes.read_bytes()).hexdigest()}


def _complaint(pieces: Any) -> str:
    """Say what is wrong with a description; empty where nothing is."""
    if not isinstance(pieces, dict) or not {"tokenizer", "bpe"} & pieces.keys():
        return "it has neither `tokenizer` nor `bpe`"
    for name, value in pieces.items():
        if name not in (*_CHOICES, *CODES.values()):
            return f"`{name}` is not known"
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = " or ".join(json.dumps(one) for one in _CHOICES[name])
            return f"`{name}` is {json.dumps(value)}, but must be {choices}"
        if name not in _CHOICES and not isinstance(value, str):
            return f"`{name}` is {json.dumps(value)}, but must be a file's name"
    wanted = CODES.get(pieces.get("bpe", ""))
    if [name for name in CODES.values() if name in pieces] != ([wanted] if wanted else []):
        return f"`bpe` and {' or '.join(f'`{name}`' for name in CODES.values())} go together"
    return ""
