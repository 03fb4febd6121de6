"""The conditioning monitor: C_p and C_max of layers' input features during training."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from rbn_fairseq.callbacks.base import Callback
from rbn_fairseq.diagnostics.conditioning import conditioning
from rbn_fairseq.measuring.records import write_records
from rbn_fairseq.models.rbn_model import RBNModel
from rbn_fairseq.norms import NoNorm
from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.norms.options import option

__all__ = ["ConditioningConfig", "ConditioningMonitor", "parse_layers", "record_features"]

logger = logging.getLogger(__name__)


@dataclass
class ConditioningConfig(FairseqDataclass):
    """Options of the conditioning monitor."""

    conditioning_interval: int = option(
        500,
        "conditioning monitor: measure the conditioning of layers' input features (C_50, C_80, "
        "C_max), of the encoder or, where there is none, of the decoder, every so many updates; "
        "0 = never",
        range="[0, inf)",
    )
    conditioning_layers: Optional[str] = option(
        None,
        "conditioning monitor: layers to measure, counted from 1 and joined by colons, such as "
        "2:4:6 (in YAML in quotes); default: three spread over the depth",
    )


def parse_layers(text: Optional[str], depth: int) -> list[int]:
    """Read ``--conditioning-layers`` for a stack of ``depth`` layers, counted from 1.

    Raises:
        ValueError: for what is not a list of layers, or a layer that the stack has not.
    """
    if text is None:
        return sorted({-(-part * depth // 3) for part in (1, 2, 3)} - {0})  # rounded up
    known = {str(layer): layer for layer in range(1, depth + 1)}
    parts = text.split(":")
    if not known.keys() >= set(parts):
        raise ValueError(
            "--conditioning-layers must be layers joined by colons, such as 2:4:6 (in YAML "
            f"in quotes: it is a time there), each between 1 and {depth}, but is `{text}`."
        )
    return sorted({known[part] for part in parts})


@contextmanager
def record_features(
    stack: Sequence[Any], layers: Sequence[int]
) -> Iterator[dict[tuple[int, str], Tensor]]:
    """Record input features of layers in the block's first forward through each.

    Places: ``stream``, what enters the layer; and in Pre-Norm ``normalised``, what its first norm
    passes to self-attention. Nothing stays on the modules afterwards.

    Args:
        stack: layers of a model's encoder or decoder.
        layers: which of them, counted from 1. Those that LayerDrop skips are not among the results.

    Yields:
        Copies by layer and place, ``(real tokens, C)``, in the dtype of the forward and without
        its graph; filled while the block runs.
    """
    features: dict[tuple[int, str], Tensor] = {}

    def keep(layer: int, place: str, x: Tensor) -> None:  # x: (N, C)
        if (layer, place) not in features:
            features[layer, place] = x.detach().clone()

    def enter(layer: int, module: nn.Module, args: Any) -> None:
        keep(layer, "stream", args[0])

    def leave_norm(layer: int, module: nn.Module, args: Any, output: Tensor) -> None:
        keep(layer, "normalised", output)

    with ExitStack() as hooks:
        for number in layers:
            layer = stack[number - 1]
            hook = layer.register_forward_pre_hook(partial(enter, number))
            hooks.callback(hook.remove)
            norm = layer.self_attn_layer_norm
            if layer.normalize_before and not isinstance(norm, NoNorm):
                hooks.callback(norm.register_forward_hook(partial(leave_norm, number)).remove)
        yield features


class ConditioningMonitor(Callback):
    """Measures the conditioning of layers' input features during training.

    At every ``--conditioning-interval`` updates it looks at the forward that training does anyway
    (dropout on, the first batch of an update, process 0's), and writes a line per layer and place
    to ``SAVE_DIR/conditioning.jsonl``. Training is the same with and without it.
    """

    options = ConditioningConfig

    _stack: Sequence[Any] = ()
    _layers: Sequence[int] = ()
    _measured: Optional[int] = None

    def on_model(self, model: nn.Module) -> None:
        """Choose the layers (``ValueError`` for such as there are not)."""
        options = self.training.options
        if isinstance(model, RBNModel):
            self._stack = getattr(model, model.kind.sides[0]).layers
            layers = parse_layers(options.conditioning_layers, len(self._stack))
            self._layers = layers if options.conditioning_interval else ()
        elif options.conditioning_interval:
            logger.info("Conditioning is not measured: the model is none of this plugin's.")

    @contextmanager
    def step(self, sample: Any, model: nn.Module, update: int, dummy: bool) -> Iterator[None]:
        """Measure if it is time."""
        due = self._layers and update != self._measured and process_rank() == 0 and not dummy
        interval = self.training.options.conditioning_interval
        layers = self._layers if due and update % interval == 0 else ()
        with record_features(self._stack, layers) as features:
            yield
        if layers:
            self._measured = update
            self._write(update, features)

    def _write(self, update: int, features: Mapping[tuple[int, str], Tensor]) -> None:
        records = []
        for (layer, place), x in features.items():
            try:
                c_max, c_p = conditioning(x)
            except LinAlgError as error:  # no reason to end a training
                logger.warning("conditioning, layer %d, update %d: %s", layer, update, error)
                c_max, c_p = math.nan, {50: math.nan, 80: math.nan}
            records.append(
                {
                    "epoch": self.training.batches.epoch,
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
            write_records(self.training.save_dir / "conditioning.jsonl", records)
