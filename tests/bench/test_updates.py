"""Times of training updates: the same batches for every setting, in turns."""

import itertools
from types import SimpleNamespace

import torch

from rbn_fairseq.bench import training, updates
from rbn_fairseq.bench.updates import compare_updates, time_updates


def test_ratios_are_taken_round_by_round():
    rounds = [{"ln": 1.0, "bn": 2.0}, {"ln": 10.0, "bn": 10.0}, {"ln": 4.0, "bn": 12.0}]
    reference, other = compare_updates(rounds)
    assert (reference.name, reference.seconds, reference.ratio) == ("ln", 4.0, 1.0)
    # Ratios 2, 1, 3; the ratio of the medians would be 2.5.
    assert (other.name, other.seconds, other.ratio) == ("bn", 10.0, 2.0)
    assert other.quartiles == (1.5, 2.5)


class Recorder:
    """Stands in for fairseq's trainer: remembers its batches and the order of all calls."""

    calls = []

    def __init__(self, name):
        self.name, self.seen = name, []

    def train_step(self, samples):
        self.seen += samples
        self.calls.append(self.name)


def test_every_setting_trains_on_the_same_batches_in_changing_order(monkeypatch):
    made = {}

    def build(data, arguments):
        name = arguments[-1]
        return made.setdefault(name, Recorder(name))

    clock = itertools.count()
    monkeypatch.setattr(Recorder, "calls", [])
    monkeypatch.setattr(updates, "make_trainer", build)
    monkeypatch.setattr(updates, "_check_batches", lambda trainers: None)
    monkeypatch.setattr(updates, "_batches", lambda trainer, number: list(range(number)))
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: next(clock) * 6.0))
    settings = {"ln": ["ln"], "bn": ["bn"], "rms": ["rms"]}
    rounds = list(time_updates("data", settings, ["--x"], rounds=3, updates=2))
    assert all(trainer.seen == list(range(8)) for trainer in made.values())
    order = [["ln", "bn", "rms"], ["bn", "rms", "ln"], ["rms", "ln", "bn"], ["ln", "bn", "rms"]]
    assert Recorder.calls[::2] == sum(order, [])
    assert rounds == [dict.fromkeys(settings, 3.0)] * 3  # 6 s for 2 updates; warm-up left out


def test_settings_really_train(data_bin, monkeypatch):
    trainers, build = [], updates.make_trainer

    def remember(data, arguments):
        trainers.append(build(data, arguments))
        return trainers[-1]

    monkeypatch.setattr(updates, "make_trainer", remember)
    norms = {"ln": (), "bn": ("--norm-encoder", "batch"), "again": ()}
    list(time_updates(str(data_bin), norms, rounds=1, updates=2))
    layer, batch, again = (trainer.model.state_dict() for trainer in trainers)
    assert [trainer.get_num_updates() for trainer in trainers] == [4] * 3
    first = "encoder.layers.0.self_attn_layer_norm.population.running_mean"
    assert batch[first].abs().max() > 0 and first not in layer
    assert any(not torch.equal(value, batch[name]) for name, value in layer.items())
    # The same start, batches and dropout.
    assert all(torch.equal(value, again[name]) for name, value in layer.items())
