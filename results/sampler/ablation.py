"""Prints what a batch norm's inference gains from knowing which sentence or place a token is of.

Population statistics of all tokens are replaced by those of groups of tokens: bins of source
length, random groups (a placebo), the wrong bin, bins in some norms or for means or variances
alone, bins of target length, places in the sentence (Cooijmans et al., 2017, Recurrent Batch
Normalization). All are pooled over the same training batches, each normalised by its own
statistics, as in training. Prints JSON lines: nll of the validation set in bits a token, and what
it is above that with each batch's own statistics.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rbn_fairseq.diagnostics import measuring, population_norms
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.measuring.bins import sentence_lengths
from rbn_fairseq.measuring.cost import likelihood
from rbn_fairseq.measuring.session import Session, open_session
from rbn_fairseq.norms import BatchLayout, cut_lengths
from rbn_fairseq.norms.normalise import multiply_add

BINS, PLACES = 16, 64
Groups = Callable[[BatchLayout, Tensor, Tensor], Tensor]


def groupings(source: Any, target: Any, seed: int) -> dict[str, tuple[int, Groups]]:
    """Return by name the number of groups, and a function that groups rows of real tokens.

    It takes the layout, and of each sentence of the layout the target length and its number in the
    data, and returns the group of each row, ``(N,)``.
    """
    edges = torch.from_numpy(cut_lengths(source.tolist(), BINS).edges[1:-1])
    target_edges = torch.from_numpy(cut_lengths(target.tolist(), BINS).edges[1:-1])
    random = torch.randint(BINS, (10_000,), generator=torch.Generator().manual_seed(seed))

    def bins(lengths: Tensor, edges: Tensor) -> Tensor:
        return torch.searchsorted(edges, lengths.double(), right=True)

    return {
        "all": (1, lambda layout, *_: torch.zeros(layout.rows, dtype=torch.long)),
        "length": (BINS, lambda layout, *_: bins(layout.lengths, edges)[layout.sentences]),
        "random": (BINS, lambda layout, _, ids: random[ids % len(random)][layout.sentences]),
        "target": (BINS, lambda layout, sizes, _: bins(sizes, target_edges)[layout.sentences]),
        "place": (PLACES, lambda layout, *_: layout.offsets().clamp(max=PLACES - 1)),
    }


#: By name: groups of the means, of the variances, which norms have them (of their number, from the
#: first), and by how many groups a token's is wrong. Other norms have statistics of all tokens.
SETTINGS = {
    "of all tokens": ("all", "all", slice(None), 0),
    "16 bins of source length": ("length", "length", slice(None), 0),
    "16 random groups": ("random", "random", slice(None), 0),
    "the wrong bin (8 further)": ("length", "length", slice(None), BINS // 2),
    "the next longer bin": ("length", "length", slice(None), 1),
    "bins, means only": ("length", "all", slice(None), 0),
    "bins, variances only": ("all", "length", slice(None), 0),
    "bins, first norm only": ("length", "length", slice(0, 1), 0),
    "bins, all norms but the first": ("length", "length", slice(1, None), 0),
    "bins, last norm only": ("length", "length", slice(-1, None), 0),
    "16 bins of target length": ("target", "target", slice(None), 0),
    "places 0 to 62, and later ones": ("place", "place", slice(None), 0),
}


class Experiment:
    """A model whose batch norms take statistics by groups of tokens.

    Args:
        session: the checkpoint; its norms must have ordinary running statistics.
        seed: of the random groups.
    """

    def __init__(self, session: Session, seed: int) -> None:
        adapter, data, iterator = session.task.adapter, session.dataset, session.iterator
        source = sentence_lengths(adapter, iterator)
        self.session = session
        self.validation = session.validation()
        self.groupings = groupings(source, adapter.target_lengths(data), seed)
        self.norms = list(population_norms(session.model).values())
        self.sums: list[dict[str, Any]] = [dict.fromkeys(self.groupings, 0) for _ in self.norms]
        self.sample: dict[str, Any] = {}

    def watch(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Pass batches on; their norms may ask which one it is."""
        for self.sample in samples:
            yield self.sample

    def group(self, name: str, layout: BatchLayout) -> Tensor:
        """Return the group of each row of the present batch, ``(N,)``."""
        assert layout.index is not None and layout.positions is not None
        first = layout.lengths.cumsum(0) - layout.lengths
        place = layout.index[first] // layout.positions[1]  # of each sentence in the batch
        sizes = self.sample["target"].ne(self.session.task.target_dictionary.pad()).sum(1)
        return self.groupings[name][1](layout, sizes[place], self.sample["id"][place])

    @contextmanager
    def forwards(self, forward: Callable[[int, Tensor, BatchLayout], Tensor]) -> Iterator[None]:
        """Let the norms, by their number, compute this in place of their own."""
        try:
            for number, norm in enumerate(self.norms):
                norm.forward = lambda x, layout, number=number: forward(number, x, layout)
            yield
        finally:
            for norm in self.norms:
                del norm.forward

    def collect(self, samples: Iterable[dict[str, Any]]) -> None:
        """Add up ``n``, ``sum x`` and ``sum x^2`` of every norm's input by group."""

        def forward(number: int, x: Tensor, layout: BatchLayout) -> Tensor:
            row = torch.cat([x.new_ones(len(x), 1), x, x.square()], 1).double()
            for name, (groups, _) in self.groupings.items():
                member = functional.one_hot(self.group(name, layout), groups).to(row)  # (N, G)
                self.sums[number][name] += member.t() @ row
            norm = self.norms[number]
            return type(norm).forward(norm, x, layout)

        model = self.session.model
        with self.forwards(forward), measuring(model):
            for sample in self.watch(samples):
                self.session.task.adapter.run_norms(model, sample)

    def moments(self, number: int, name: str) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each group, ``(G, C)``; of an empty one those of all."""
        sums, everything = self.sums[number][name], self.sums[number]["all"]
        sums = torch.where(sums[:, :1] > 0, sums, everything)
        mean, square = (sums[:, 1:] / sums[:, :1]).chunk(2, 1)
        return mean, square - mean.square()

    def evaluate(self, setting: str) -> float:
        """Return the nll of the validation set in bits a token with these statistics."""
        means, variances, where, shift = SETTINGS[setting]
        chosen = set(range(len(self.norms))[where])

        def forward(number: int, x: Tensor, layout: BatchLayout) -> Tensor:
            norm, maps = self.norms[number], []
            for moment, name in enumerate((means, variances)):
                of = self.moments(number, name if number in chosen else "all")[moment].float()
                group = self.group(name if number in chosen else "all", layout)
                maps.append(of[(group + shift) % len(of)])  # (N, C)
            return multiply_add(x, *norm._map(*maps))

        with self.forwards(forward):
            return self.nll()

    def nll(self) -> float:
        """Return the nll of the validation set with the norms as they are."""
        data, iterator = self.validation
        batches = collate(data, iterator.frozen_batches, self.session.model)
        padding = self.session.task.target_dictionary.pad()
        return likelihood(self.session.model, self.watch(batches), padding).nll


def measure(session: Session, batches: int, seed: int) -> dict[str, float]:
    """Return nll by setting.

    Args:
        session: the checkpoint.
        batches: number of training batches to estimate statistics on; 0 = all.
        seed: of their draw, and of the random groups.
    """
    experiment = Experiment(session, seed)
    drawn = draw_batches(session.iterator.frozen_batches, batches, seed)
    experiment.collect(collate(session.dataset, drawn, session.model))
    with measuring(session.model):
        own = experiment.nll()
    rows = {"each batch's own": own, "running": experiment.nll()}
    return rows | {setting: experiment.evaluate(setting) for setting in SETTINGS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--data", type=Path, help="data directory, if not the checkpoint's own")
    parser.add_argument("--batches", type=int, default=200, help="training batches; 0 = all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.checkpoints:
        session = open_session(arguments.run / name, arguments.data)
        with torch.no_grad():
            rows = measure(session, arguments.batches, arguments.seed)
        for setting, nll in rows.items():
            row = {"run": arguments.run.name, "checkpoint": name, "statistics": setting}
            cost = nll - rows["each batch's own"]
            sys.stdout.write(json.dumps({**row, "nll": nll, "cost": cost}) + "\n")
        sys.stdout.flush()
