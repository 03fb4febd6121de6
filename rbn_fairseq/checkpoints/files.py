"""Reading, finding and writing checkpoint files."""

import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rbn_fairseq.writing import unfinished

__all__ = [
    "NO_EMBEDDINGS", "drop_moving_average", "epoch_checkpoints", "has_norms", "is_archive",
    "is_whole", "model_settings", "own_settings", "plain_settings", "read_checkpoint",
    "refuse_folded", "updates_of", "write_checkpoint",
]  # fmt: skip

#: Settings: what the embeddings started from is in the weights, and its files may be gone.
NO_EMBEDDINGS = {"encoder_embed_path": None, "decoder_embed_path": None}

_DIRECTORY = 0x10  # in the attributes of MS-DOS


def is_archive(path: Path) -> bool:
    """Tell whether a file is a torch archive, by its end alone.

    Raises:
        ValueError: if the file may not be read.
    """
    try:
        with path.open("rb") as file:
            return zipfile.is_zipfile(file)
    except PermissionError as error:
        raise ValueError(f"The file `{path}` may not be read: see its permissions.") from error
    except OSError:
        return False


def is_whole(path: Path) -> bool:
    """Tell whether a file is a complete torch archive: every member's checksum is right.

    Raises:
        ValueError: if the file may not be read.
    """
    if not is_archive(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            # For torch a member with this attribute is a directory, of which it reads nothing:
            # the tensor is whatever the memory held.
            directories = any(member.external_attr & _DIRECTORY for member in members)
            # After a failed write fairseq tries again behind what that left; torch, unlike
            # zipfile, does not find an archive there.
            begins = min((member.header_offset for member in members), default=0) == 0
            return begins and not directories and archive.testzip() is None
    except Exception:  # zipfile raises many kinds for a file that is none
        return False


def read_checkpoint(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a fairseq checkpoint on the CPU without running any code that it may hold.

    Args:
        path: the file.
        mmap: map the tensors instead of reading them; checksums are then not verified.

    Raises:
        ValueError: if the file is missing, damaged, unsafe, or no fairseq checkpoint, or may not be
            read.
    """
    if path.is_dir():
        raise ValueError(f"`{path}` is a directory: name a file in it, such as checkpoint_best.pt.")
    if not path.is_file():
        raise ValueError(f"There is no checkpoint file `{path}`.")
    if not (is_archive(path) if mmap else is_whole(path)):
        raise ValueError(
            f"The file `{path}` is no checkpoint, or a truncated or damaged one (or older than "
            "torch 1.6). Give another one."
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        kind = re.search(r"GLOBAL (\S+)", str(error))
        what = f"the type `{kind[1]}`" if kind else "a type"
        raise ValueError(
            f"The checkpoint `{path}` holds {what} that is not on the list of safe ones; none of "
            "it was run. Do not use the file unless you know who made it."
        ) from error
    except Exception as error:  # torch and pickle have many words for damage
        raise ValueError(f"The checkpoint `{path}` is damaged: {error}.") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"The file `{path}` is no fairseq checkpoint: it has no `model`.")
    return state


def plain_settings(settings: Any) -> Mapping[str, Any]:
    """Return settings of any kind as a mapping, without interpolation; empty if they are none."""
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=False)
    if isinstance(settings, Namespace):
        settings = vars(settings)
    return settings if isinstance(settings, Mapping) else {}


def model_settings(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a checkpoint's model, which old ones of fairseq have in `args`."""
    cfg = plain_settings(state.get("cfg"))
    return plain_settings(cfg.get("model")) or plain_settings(state.get("args"))


def has_norms(model: Mapping[str, Any]) -> bool:
    """Whether settings are those of a model of this plugin; its name may be the user's own."""
    return "norm_encoder" in model or "norm_decoder" in model


def own_settings(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Return fairseq's configuration from the content of a checkpoint of this plugin.

    Raises:
        ValueError: naming its ``path``, if it was made without this plugin.
    """
    cfg: dict[str, Any] = state.get("cfg") or {}
    model = plain_settings(cfg.get("model"))
    if not has_norms(model):
        raise ValueError(
            f"The checkpoint `{path}` was made without this plugin: its model is "
            f"`{model.get('_name')}`, not an `rbn_transformer`."
        )
    return cfg


def refuse_folded(path: Path, state: dict[str, Any], instead: str) -> None:
    """Refuse a checkpoint that `rbn fold` wrote (``ValueError``, which ends with ``instead``)."""
    if "folded" in (state.get("rbn_fairseq") or {}):
        raise ValueError(
            f"The checkpoint `{path}` is folded: what norms did by running statistics is in its "
            f"weights. {instead}"
        )


def updates_of(state: dict[str, Any]) -> int:
    """Return the number of a checkpoint's updates; 0 where it does not say."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def drop_moving_average(state: dict[str, Any]) -> None:
    """Remove the moving average of the weights, which fairseq keeps with ``--store-ema``."""
    for name in ("ema", "ema_fp32_params"):
        (state.get("extra_state") or {}).pop(name, None)


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint that is there whole or not at all."""
    with unfinished(path) as part:
        torch.save(state, part)


def epoch_checkpoints(directory: Path) -> dict[int, Path]:
    """Return ``checkpoint{EPOCH}.pt`` files by epoch, in ascending order.

    Raises:
        ValueError: if the directory does not exist.
    """
    if not directory.is_dir():
        raise ValueError(f"There is no directory `{directory}`.")
    matches = (re.fullmatch(r"checkpoint(\d+)\.pt", path.name) for path in directory.iterdir())
    return {
        int(m[1]): directory / m[0] for m in sorted(filter(None, matches), key=lambda m: int(m[1]))
    }
