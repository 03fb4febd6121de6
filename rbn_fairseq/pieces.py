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
    '{"tokenizer": "moses", "lowercase": true, "bpe": "subword_nmt", "bpe_codes": "codes"}, with '
    'the file `codes` beside it, or {"tokenizer": "space"} where words are the pieces'
)
#: The option of each kind of BPE that names its file.
CODES = {"subword_nmt": "bpe_codes", "sentencepiece": "sentencepiece_model"}


def write_pieces(data: Path, bpe: str, codes: Path, **others: Any) -> None:
    """Copy the codes into a data directory, and name them there with the other options."""
    shutil.copyfile(codes, data / codes.name)
    pieces = {**others, "bpe": bpe, CODES[bpe]: codes.name}
    write_whole(data / PIECES, json.dumps(pieces, indent=1) + "\n")


def read_pieces(data: Path) -> Optional[dict[str, Any]]:
    """Return a data directory's ``pieces.json``, and with it the ``sha256`` of the codes, if any.

    ``None`` if it has none.

    Raises:
        ValueError: if the file is damaged, or the codes are gone.
    """
    path = data / PIECES
    if not path.is_file():
        return None
    try:
        pieces = dict(json.loads(path.read_text(encoding="utf-8")))
        codes = data / pieces[CODES[pieces["bpe"]]] if "bpe" in pieces else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`{path}` is damaged ({error!r}). Expected is such as {EXAMPLE}."
        ) from error
    if codes is None:
        return pieces
    if not codes.is_file():
        raise ValueError(f"`{path}` names the codes `{codes.name}`, which are gone: put them back.")
    return {**pieces, "sha256": hashlib.sha256(codes.read_bytes()).hexdigest()}
