"""Prints how long the sentences are that running statistics remember when `run.sh ptb` ends.

A running average with momentum m gives the batch of k updates before the weight m (1 - m)^k.
Printed for each seed: the mean sentence length of batches, in tokens, with these weights, and of
all batches alike. Of sentences sorted by length.

Usage: python results/tasks/last_batches.py BIN SEED...
"""

import argparse

import torch
from fairseq.data import data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import setup_task

import rbn_fairseq

MOMENTUM, MAX_TOKENS, LAST_EPOCH = 0.05, 2000, 4


def lengths(data: str, seed: int) -> torch.Tensor:
    """Return the mean sentence length of each batch of the last epoch, in training's order."""
    settings = argparse.Namespace(
        task="language_modeling_rbn", data=data, dataset_impl="mmap", use_plasma_view=False,
        sample_break_mode="eos", tokens_per_sample=128,
    )  # fmt: skip
    task = setup_task(settings)
    task.load_dataset("train")
    dataset = task.dataset("train")
    with data_utils.numpy_seed(seed):
        ordered = dataset.ordered_indices()
    batches = dataset.batch_by_size(ordered, max_tokens=MAX_TOKENS, required_batch_size_multiple=8)
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
        weights = MOMENTUM * (1 - MOMENTUM) ** torch.arange(len(of_batches)).flip(0)
        remembered = (weights / weights.sum() * of_batches).sum()
        print(f"seed {seed}: {remembered:.1f} tokens, all batches {of_batches.mean():.1f}")
