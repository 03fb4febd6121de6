"""Norms alone, called as a model calls them: python benchmarks/norms.py DATA-BIN."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import torch
import typer
from torch import nn

from rbn_fairseq.cli.options import Json, Overwrite, UserDir
from rbn_fairseq.measuring.batches import draw_batches
from rbn_fairseq.norms import NORMS, BatchLayout, NormPlace, build_norm, parse_norms
from rounds import Row, milliseconds, summarise, take_turns
from script import DEVICE, Data, Device, Rounds, Threads, begin, show
from trainers import make_trainer, training_batches

TORCH = "torch-batch"  # torch's own batch norm

#: Batches as the number of tokens of each sentence, in the order of the rows.
Batches = Sequence[Sequence[int]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def data_cases(data: str, max_tokens: int = 4096, number: int = 24) -> dict[str, Batches]:
    """Return batches of training data as fairseq makes them, by side.

    Args:
        data: directory that fairseq-preprocess filled.
        max_tokens: fairseq's limit for a batch, in tokens of either side.
        number: of batches, drawn uniformly from an epoch; 0 = all.
    """
    options = ["--arch", "rbn_transformer_tiny", "--optimizer", "adam"]
    trainer = make_trainer(data, [*options, "--max-tokens", str(max_tokens)], "cpu")
    dataset, epoch = training_batches(trainer)
    drawn = draw_batches(epoch, number, seed=1)
    return {
        "source": [dataset.src_sizes[batch].tolist() for batch in drawn],
        "target": [dataset.tgt_sizes[batch].tolist() for batch in drawn],
    }


class Workload:
    """Batches of random activations and gradients, in the same memory, and norms to run on them.

    Args:
        batches: the number of tokens of each sentence, batch by batch.
        channels: C.
        device: ``cpu`` or ``cuda``.
        dtype: of activations and weights, a name of torch.
        training: forward and backward in training; otherwise forward in evaluation.
        depth: norms one after another, as those of an encoder's layers are.
    """

    def __init__(
        self,
        batches: Batches,
        channels: int,
        device: str = "cpu",
        dtype: str = "float32",
        training: bool = True,
        depth: int = 12,
    ) -> None:
        self.channels, self.depth, self.training = channels, depth, training
        self.device, self.dtype = device, dtype
        self.layouts = [BatchLayout(torch.tensor(b, device=device), list(b)) for b in batches]
        shape = (2, max(map(sum, batches)), channels)
        self._memory = torch.randn(shape, device=device).to(getattr(torch, dtype))

    def stack(self, name: str) -> nn.ModuleList:
        """Build the norms of a name, a composition ``a+b``, or ``torch-batch``.

        Raises:
            ValueError: for an unknown name; in compositions ``torch-batch`` is.
        """
        names = parse_norms(name, NORMS if "+" in name else {*NORMS, TORCH}, "--norm")
        stack = nn.ModuleList(
            nn.BatchNorm1d(self.channels)
            if name == TORCH
            else build_norm(names, NormPlace(self.channels, heads=8), {})
            for _ in range(self.depth)
        )
        return stack.to(self.device, getattr(torch, self.dtype)).train(self.training)

    def run(self, stack: nn.ModuleList) -> None:
        """Run norms one after another on all batches, with their backward in training."""
        with torch.set_grad_enabled(self.training):
            for layout in self.layouts:
                x, upstream = self._memory[:, : layout.rows]  # (N, C)
                y = x = x.detach().requires_grad_(self.training)
                for norm in stack:
                    y = norm(y) if isinstance(norm, nn.BatchNorm1d) else norm(y, layout)
                if self.training:
                    inputs = [x, *stack.parameters()]
                    torch.autograd.grad(y, inputs, upstream, allow_unused=True)


def time_norms(norms: Sequence[str], case: str, work: Workload, rounds: int) -> list[Row]:
    """Time norms in turn on the batches of a case; the first is the reference.

    A time is that of a norm on a batch's rows of real tokens: the mean over the norms of a stack
    and the batches.
    """
    actions = {
        name: partial(milliseconds, partial(work.run, work.stack(name)), work.device)
        for name in norms
    }
    timings = take_turns(actions, rounds, case)
    norms_run = work.depth * len(work.layouts)
    return summarise(
        [{name: ms / norms_run for name, ms in times.items()} for times in timings],
        bench="norm" if work.training else "norm, evaluation",
        device=work.device,
        threads=torch.get_num_threads(),
        dtype=work.dtype,
        case=case,
        channels=work.channels,
    )


@app.command()
def main(
    data: Data,
    norm: Annotated[
        list[str],
        typer.Option(
            help="A name of `rbn norms`, a composition `a+b`, or `torch-batch`, torch's own batch "
            "norm (repeatable). `layer` is always timed."
        ),
    ] = ["batch"],
    channels: Annotated[int, typer.Option(min=1, help="Number of channels C.")] = 512,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Time the forward alone, in evaluation.")
    ] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Type of the activations.")
    ] = "float32",
    rounds: Rounds = 20,
    device: Device = DEVICE,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Time norms in turn, as a model calls them: forward and backward in training.

    A time is that of one norm on the real tokens of one training batch, source or target side.
    """
    begin(data, json, overwrite, threads)
    norms = list(dict.fromkeys(("layer", *norm)))
    rows: list[Row] = []
    for case, batches in data_cases(str(data)).items():
        work = Workload(batches, channels, device, dtype, not evaluation)
        rows += time_norms(norms, case, work, rounds)
    show(rows, json, device)


if __name__ == "__main__":
    app()
