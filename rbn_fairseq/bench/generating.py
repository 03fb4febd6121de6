"""Inference: an encoder's forward, and whole generation by beam search."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Optional

import torch
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig

from rbn_fairseq.bench.rounds import Row, milliseconds, summarise, take_turns
from rbn_fairseq.bench.trainers import build_all, dtype_of, fairseq_options, set_up
from rbn_fairseq.measuring.batches import collate, draw_batches

__all__ = ["FLOOR", "PLACEMENTS", "default_settings", "time_inference"]

FLOOR = "none"  # the setting without norms


_BEFORE = "--encoder-normalize-before --decoder-normalize-before"
_POST = "--norm-encoder {0} --norm-decoder {0}"
_PRE = f"{_BEFORE} {_POST} --norm-encoder-final {{0}} --norm-decoder-final {{1}}"
# `folded` is what `rbn fold` leaves of `batch`: nothing where a linear layer follows.
PLACEMENTS = {
    "post-norm": {
        "layer": _POST.format("layer"),
        "batch": _POST.format("batch"),
        "folded": _POST.format("affine"),
        FLOOR: _POST.format("none"),
    },
    "pre-norm": {
        "layer": _PRE.format("layer", "layer"),
        "batch": _PRE.format("batch", "batch"),
        "folded": _PRE.format("none", "affine"),
        FLOOR: _PRE.format("none", "none"),
    },
}


def default_settings(placement: str, common: Sequence[str]) -> dict[str, list[str]]:
    """Return the default settings: fairseq's own model, and ours with several norms.

    Args:
        placement: ``post-norm`` or ``pre-norm``.
        common: options of all settings.
    """
    before = _BEFORE.split() if placement == "pre-norm" else []
    settings = {name: options.split() for name, options in PLACEMENTS[placement].items()}
    return {"fairseq": fairseq_options([*common, *before]), **settings}


class Translator:
    """A model with random weights that encodes and generates.

    Args:
        data: directory that fairseq-preprocess filled.
        arguments: fairseq-train's options.
        device: ``cpu`` or ``cuda``.
        beam: width of the search.
        steps: tokens of every translation: untrained models do not know when to end.
    """

    def __init__(
        self, data: str, arguments: Sequence[str], device: str, beam: int, steps: int
    ) -> None:
        self.cfg, self.task = set_up(data, arguments, device)
        # As from a checkpoint: what is folded may not train.
        model = self.task.build_model(self.cfg.model, from_checkpoint=True)
        self.dtype = dtype_of(self.cfg)
        self.model = model.to(device, getattr(torch, self.dtype))
        lengths = {"max_len_a": 0, "max_len_b": steps, "min_len": steps}
        generation = GenerationConfig(beam=beam, **lengths)
        # As fairseq-generate: without it, decoder layers compute attention weights at every step.
        self.model.prepare_for_inference_(FairseqConfig(generation=generation))
        # The generator puts the model into evaluation mode.
        self.generator = self.task.build_generator([self.model], generation)

    def batches(self, subset: str, number: int) -> list[Any]:
        """Return batches of a subset, drawn uniformly, as fairseq-generate makes them."""
        self.task.load_dataset(subset)
        dataset = self.task.dataset(subset)
        iterator = self.task.get_batch_iterator(
            dataset,
            max_tokens=self.cfg.dataset.max_tokens,
            max_sentences=self.cfg.dataset.batch_size,
            max_positions=self.model.max_positions(),
            ignore_invalid_inputs=True,
            required_batch_size_multiple=8,
        )
        drawn = draw_batches(iterator.frozen_batches, number, self.cfg.common.seed)
        return list(collate(dataset, drawn, self.model))

    @torch.inference_mode()
    def encode(self, batches: Sequence[Any]) -> None:
        """Run the encoder."""
        for batch in batches:
            inputs = batch["net_input"]
            self.model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])

    def generate(self, batches: Sequence[Any]) -> list[Any]:
        """Return the hypotheses of beam search."""
        return [self.task.inference_step(self.generator, [self.model], batch) for batch in batches]


def time_inference(
    data: str,
    settings: Mapping[str, Sequence[str]],
    common: Sequence[str],
    case: str,
    subset: str = "test",
    batches: int = 2,
    rounds: int = 10,
    beam: int = 5,
    steps: int = 20,
    device: str = "cpu",
    threads: int = 1,
) -> list[Row]:
    """Time models with random weights, in turn: their encoders, then whole generation.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: fairseq-train's options by name; the first is the reference, and one called
            ``none`` the floor.
        common: options of all settings.
        case: name of the comparison.
        subset: of the data.
        batches: number of them in a turn, drawn uniformly.
        rounds: number that counts; one more warms up.
        beam: width of the search.
        steps: tokens of every translation.
        device: ``cpu`` or ``cuda``.
        threads: of torch, as they are set.

    Raises:
        ValueError: if fairseq-train does not take the options, or settings differ in the size of
            batches, the seed or the precision.
    """
    models = build_all(
        {name: [*common, *options] for name, options in settings.items()},
        partial(Translator, data, device=device, beam=beam, steps=steps),
    )
    first, *_ = models.values()
    drawn = first.batches(subset, batches)
    floor: Optional[str] = "the same without norms" if FLOOR in models else None
    rows = []
    for what, method in ("encoder", Translator.encode), (f"beam {beam}", Translator.generate):
        actions = {
            name: partial(milliseconds, partial(method, model, drawn), device)
            for name, model in models.items()
        }
        timings = take_turns(actions, rounds, f"{case}, {what}")
        per_batch = [{name: ms / len(drawn) for name, ms in times.items()} for times in timings]
        rows += summarise(
            per_batch,
            FLOOR,
            bench="generate",
            case=f"{case}, {what}",
            floor=floor,
            device=device,
            threads=threads,
            dtype=first.dtype,
        )
    return rows
