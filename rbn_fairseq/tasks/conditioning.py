"""The conditioning monitor: C_p and C_max of encoder layers' input features during training."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor, nn

from rbn_fairseq.diagnostics.conditioning import conditioning
from rbn_fairseq.models.encoder import RBNTransformerEncoder
from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.tasks.features import record_features
from rbn_fairseq.tasks.records import write_records

__all__ = ["ConditioningConfig", "ConditioningMonitor", "parse_layers"]

logger = logging.getLogger(__name__)


@dataclass
class ConditioningConfig(FairseqDataclass):
    """Options of the conditioning monitor."""

    conditioning_interval: int = field(
        default=500,
        metadata={
            "help": "conditioning monitor: measure the conditioning of encoder layers' input "
            "features (C_50, C_80, C_max) every so many updates; 0 = never"
        },
    )
    conditioning_layers: Optional[str] = field(
        default=None,
        metadata={
            "help": "conditioning monitor: encoder layers to measure, counted from 1 and joined "
            "by colons, such as 2:4:6 (in YAML in quotes); default: three spread over the depth"
        },
    )
    # Known elsewhere; without a help text it does not become an option.
    save_dir: str = II("checkpoint.save_dir")


def parse_layers(text: Optional[str], depth: int) -> list[int]:
    """Read ``--conditioning-layers`` for an encoder of ``depth`` layers, counted from 1.

    Raises:
        ValueError: for what is not a list of layers, or a layer that the encoder has not.
    """
    if text is None:
        return sorted({-(-part * depth // 3) for part in (1, 2, 3)} - {0})  # rounded up
    parts = text.split(":")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(
            "--conditioning-layers must be layers of the encoder joined by colons, but is "
            f"`{text}`. Give, for example, 2:4:6."
        )
    for layer in map(int, parts):
        if not 1 <= layer <= depth:
            raise ValueError(
                f"--conditioning-layers must lie between 1 and {depth}, the number of encoder "
                f"layers, but one is {layer}. Name other layers, or leave it out. In YAML the list "
                "needs quotes: 2:4:6 is a time there."
            )
    return sorted(set(map(int, parts)))


class ConditioningMonitor:
    """Mixin for a fairseq task; put it before the task among the bases.

    At every ``--conditioning-interval`` updates it looks at the forward that training does anyway
    (dropout on, the first batch of an update, process 0's), and writes a line per layer and place
    to ``SAVE_DIR/conditioning.jsonl``. Training is the same with and without it.
    """

    cfg: Any
    _epoch = 0
    _layers: Sequence[int] = ()
    _measured: Optional[int] = None

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model.

        Raises:
            ValueError: for a negative interval, or layers that the encoder has not.
        """
        model: nn.Module = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        if from_checkpoint:
            return model
        if self.cfg.conditioning_interval < 0:
            raise ValueError(
                f"--conditioning-interval must be >= 0, but is {self.cfg.conditioning_interval}. "
                "0 turns the measurement off."
            )
        encoder = getattr(model, "encoder", None)
        if isinstance(encoder, RBNTransformerEncoder):
            layers = parse_layers(self.cfg.conditioning_layers, len(encoder.layers))
            self._layers = layers if self.cfg.conditioning_interval else ()
        elif self.cfg.conditioning_interval:
            logger.info("Conditioning is not measured: the model is no rbn_transformer.")
        return model

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Remember the epoch."""
        super().begin_epoch(epoch, model)  # type: ignore[misc]
        self._epoch = epoch

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Do fairseq's step, and measure if it is time."""
        layers = self._layers if self._is_due(update_num) and not ignore_grad else ()
        with record_features(model, layers) as features:
            result = super().train_step(  # type: ignore[misc]
                sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **kwargs
            )
        if layers:
            self._measured = update_num
            self._write(update_num, features)
        return result

    def _is_due(self, update: int) -> bool:
        if not self._layers or update == self._measured or process_rank() > 0:
            return False
        return update % self.cfg.conditioning_interval == 0

    def _write(self, update: int, features: Mapping[tuple[int, str], Tensor]) -> None:
        records = []
        for (layer, place), x in features.items():
            try:
                c_max, c_p = conditioning(x)
            except torch.linalg.LinAlgError as error:  # no reason to end a training
                logger.warning("conditioning, layer %d, update %d: %s", layer, update, error)
                c_max, c_p = math.nan, {50: math.nan, 80: math.nan}
            records.append(
                {
                    "epoch": self._epoch,
                    "update": update,
                    "layer": layer,
                    "place": place,
                    "tokens": x.shape[0],
                    "channels": x.shape[1],
                    **{f"c_{percent}": value for percent, value in c_p.items()},
                    "c_max": c_max,
                }
            )
        if records:  # LayerDrop may have skipped all
            write_records(Path(self.cfg.save_dir) / "conditioning.jsonl", records)
