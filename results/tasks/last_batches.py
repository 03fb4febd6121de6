"""Prints how long the sentences are that running statistics remember when `run.sh ptb` ends.

For sentences sorted by length. A running average with momentum m gives the batch of k updates
before the weight m (1 - m)^k. Printed for each seed: the mean sentence length of a batch, in
tokens, by these weights, and over all batches alike.
"""

import argparse

import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import setup_task

import rbn_fairseq

# As in run.sh; the momentum is the norm's default.
MOMENTUM, MAX_TOKENS, UPDATES, LAST_EPOCH = 0.05, 2000, 1980, 4


def lengths(data: str, seed: int) -> torch.Tensor:
    """Return the mean sentence length of each batch of the last epoch, in training's order."""
    settings = argparse.Namespace(
        task="language_modeling_rbn", data=data, dataset_impl="mmap", use_plasma_view=False,
        sample_break_mode="eos", tokens_per_sample=128,
    )  # fmt: skip
    task = setup_task(settings)
    task.load_dataset("train")
    dataset = task.dataset("train")
    ordered = dataset.ordered_indices()  # of one length in any order: lengths alone count here
    batches = dataset.batch_by_size(ordered, max_tokens=MAX_TOKENS, required_batch_size_multiple=8)
    if LAST_EPOCH * len(batches) != UPDATES:
        raise SystemExit(f"{data} has {len(batches)} batches: not those of `run.sh ptb`")
    epochs = EpochBatchIterator(dataset, dataset.collater, batches, seed=seed, epoch=LAST_EPOCH)
    epoch = epochs.next_epoch_itr(shuffle=True)
    return torch.stack([batch["net_input"]["src_lengths"].double().mean() for batch in epoch])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("seeds", type=int, nargs="+")
    arguments = parser.parse_args()
    rbn_fairseq.register()
    for seed in arguments.seeds:
        of_batches = lengths(arguments.data, seed)
        weights = (1 - MOMENTUM) ** torch.arange(len(of_batches)).flip(0)
        remembered = (weights / weights.sum() * of_batches).sum()
        print(f"seed {seed}: {remembered:.1f} tokens, all batches {of_batches.mean():.1f}")
