"""Measuring TID beside training: python benchmarks/monitor.py DATA-BIN."""

from functools import partial

import typer

from rbn_fairseq.callbacks.tid_monitor import TIDMonitorConfig
from rbn_fairseq.cli.options import Json, Overwrite
from rbn_fairseq.diagnostics import collect_moments
from rbn_fairseq.measuring.adapters import EncoderDecoder
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.measuring.records import norm_records
from rounds import milliseconds, summarise, take_turns
from script import DEVICE, Data, Device, Options, Rounds, Threads, begin, show
from trainers import DEFAULTS, dtype_of, make_trainer, train, training_batches

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    data: Data,
    options: Options = [*DEFAULTS, "--norm-encoder", "batch"],
    rounds: Rounds = 10,
    device: Device = DEVICE,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Time training and measuring TID in turn, on the same batches; an epoch of each."""
    begin(data, json, overwrite, threads)
    trainer = make_trainer(str(data), options, device)
    dataset, epoch = training_batches(trainer)
    drawn = draw_batches(epoch, 20, seed=1)
    samples = list(collate(dataset, drawn, trainer.model))

    def measure() -> None:
        batches = collate(dataset, drawn, trainer.model)
        layers = collect_moments(trainer.model, batches, EncoderDecoder().run_norms)
        norm_records(layers, 1, 1, len(drawn))

    turns = {
        "update": partial(milliseconds, partial(train, trainer, samples), device),
        "measurement": partial(milliseconds, measure, device),
    }
    sample = min(TIDMonitorConfig.tid_batches, len(epoch))
    costs = [
        {
            f"{len(epoch)} updates": len(epoch) * times["update"] / len(drawn),
            f"TID of {sample} batches": sample * times["measurement"] / len(drawn),
            "TID of all batches": len(epoch) * times["measurement"] / len(drawn),
        }
        for times in take_turns(turns, rounds, "training and measuring")
    ]
    about = {"case": trainer.cfg.model.norm_encoder, "dtype": dtype_of(trainer.cfg)}
    show(summarise(costs, bench="tid", device=device, threads=threads, **about), json, device)


if __name__ == "__main__":
    app()
