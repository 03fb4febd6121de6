"""Inference: an encoder's forward, and beam search: python benchmarks/generation.py DATA-BIN."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
import typer
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig

from rbn_fairseq.cli.options import Json, Overwrite
from rbn_fairseq.measuring.batches import collate, draw_batches
from rounds import milliseconds, summarise, take_turns
from script import DEVICE, Data, Device, Options, Rounds, Threads, begin, show
from trainers import DEFAULTS, build_all, dtype_of, read_settings, set_up

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def placed_settings(pre_norm: bool) -> list[str]:
    """Return fairseq's own model and ours with several norms, as settings of a placement.

    ``folded`` is what `rbn fold` leaves of ``batch``: nothing where a linear layer follows.
    """
    settings = ["fairseq"]
    folded = "none" if pre_norm else "affine"
    for name in ("layer", "batch", "folded", "none"):
        norm, last = (folded, "affine") if name == "folded" else (name, name)
        own = f"{name}: --norm-encoder {norm} --norm-decoder {norm}"
        final = f" --norm-encoder-final {norm} --norm-decoder-final {last}"
        settings.append(own + final if pre_norm else own)
    return settings


class Translator:
    """A model with random weights and fairseq-train's options, which encodes and generates.

    Every translation has ``steps`` tokens: untrained models do not know when to end.
    """

    def __init__(
        self, data: str, arguments: Sequence[str], device: str, beam: int, steps: int
    ) -> None:
        self.cfg, self.task = set_up(data, arguments, device)
        # As from a checkpoint: what is folded may not train.
        model = self.task.build_model(self.cfg.model, from_checkpoint=True)
        self.model = model.to(device, getattr(torch, dtype_of(self.cfg)))
        lengths = {"max_len_a": 0, "max_len_b": steps, "min_len": steps}
        generation = GenerationConfig(beam=beam, **lengths)
        # As fairseq-generate: without it, decoder layers compute attention weights at every step.
        self.model.prepare_for_inference_(FairseqConfig(generation=generation))
        # The generator puts the model into evaluation mode.
        self.generator = self.task.build_generator([self.model], generation)

    def batches(self, number: int) -> list[Any]:
        """Return batches of the test set, drawn uniformly, as fairseq-generate makes them."""
        self.task.load_dataset("test")
        dataset = self.task.dataset("test")
        iterator = self.task.get_batch_iterator(
            dataset,
            max_tokens=self.cfg.dataset.max_tokens,
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


@app.command()
def main(
    data: Data,
    options: Options = DEFAULTS,
    batches: Annotated[int, typer.Option(min=1, help="Batches of a round, drawn uniformly.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Tokens of every translation.")] = 20,
    beam: Annotated[int, typer.Option(min=1, help="Width of the beam search.")] = 5,
    rounds: Rounds = 10,
    device: Device = DEVICE,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Time the encoder's forward and whole generation of models with random weights, in turn.

    All generate the same number of tokens: fairseq's own model and, in encoder and decoder, layer
    norm, batch norm, what `rbn fold` leaves of it, and no norm; Post-Norm, then Pre-Norm. A time is
    that of a batch of the test set.
    """
    begin(data, json, overwrite, threads)
    make = partial(Translator, str(data), device=device, beam=beam, steps=steps)
    rows = []
    for placement, pre in (("post-norm", False), ("pre-norm", True)):
        before = ["--encoder-normalize-before", "--decoder-normalize-before"] * pre
        models = build_all(read_settings(placed_settings(pre), [*options, *before]), make)
        first, *_ = models.values()
        drawn = first.batches(batches)
        for what, method in ("encoder", Translator.encode), (f"beam {beam}", Translator.generate):
            case = f"{placement}, {what}"
            actions = {
                name: partial(milliseconds, partial(method, model, drawn), device)
                for name, model in models.items()
            }
            timings = take_turns(actions, rounds, case)
            rows += summarise(
                [{name: ms / len(drawn) for name, ms in times.items()} for times in timings],
                bench="generate",
                case=case,
                device=device,
                threads=threads,
                dtype=dtype_of(first.cfg),
            )
    show(rows, json, device)


if __name__ == "__main__":
    app()
