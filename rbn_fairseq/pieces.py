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

__all__ = ["CODES", "PIECES", "read_pieces", "write_pieces"]

PIECES = "pieces.json"
#: The option of each kind of BPE that names its file.
CODES = {"subword_nmt": "bpe_codes", "sentencepiece": "sentencepiece_model"}


def write_pieces(data: Path, bpe: str, codes: Path, **others: Any) -> None:
    """Copy the codes into a data directory, and name them there with the other options."""
    shutil.copyfile(codes, data / codes.name)
    pieces = {**others, "bpe": bpe, CODES[bpe]: codes.name}
    write_whole(data / PIECES, json.dumps(pieces, indent=1) + "\n")


def read_pieces(data: Path) -> Optional[dict[str, Any]]:
    """Return a data directory's ``pieces.json``, and with it the ``sha256`` of the codes.

    ``None`` if it has none.

    Raises:
        ValueError: if the file is damaged, or the codes are gone.
    """
    path = data / PIECES
    if not path.is_file():
        return None
    try:
        pieces = dict(json.loads(path.read_text(encoding="utf-8")))
        codes = data / pieces[CODES[pieces["bpe"]]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`{path}` is damaged ({error!r}). Remove it, and say with --tokenizer and --bpe how "
            "the data were made."
        ) from error
    if not codes.is_file():
        raise ValueError(
            f"`{path}` names the codes `{codes.name}`, which are gone. Put them back, or name a "
            f"copy: --bpe {pieces['bpe']} --{CODES[pieces['bpe']].replace('_', '-')} FILE, with "
            "--tokenizer and --lowercase as in that file."
        )
    return {**pieces, "sha256": hashlib.sha256(codes.read_bytes()).hexdigest()}
