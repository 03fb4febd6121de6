"""Callbacks without a training: what they may know, and a task that runs them."""

from types import SimpleNamespace

from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

from rbn_fairseq.callbacks import Training, WithCallbacks
from rbn_fairseq.measuring.adapters import EncoderDecoder

CFG = {
    "dataset": {
        "train_subset": "train",
        "disable_validation": False,
        "validate_interval": 1,
        "validate_after_updates": 0,
    },
    "checkpoint": {"save_dir": "nowhere"},
    "optimization": {"max_update": 0},
}


def configuration(**groups):
    """fairseq's configuration, as far as callbacks read it."""
    return OmegaConf.merge(CFG, groups)


def training(options=(), model=None, **groups):
    """The training that a callback is made with; ``options``: its own."""
    cfg = configuration(**groups)
    return Training(cfg, SimpleNamespace(**dict(options)), None, model)


class Base(FairseqTask):
    """A task whose step is the model's forward."""

    def train_step(self, sample, model, *args, **kwargs):
        return model(*sample)

    def optimizer_step(self, optimizer, model, update_num):
        pass


def task(*kinds, base=Base, **groups):
    """A task with these callbacks, and the end of an epoch at every validation."""
    kind = type("Task", (WithCallbacks, base), {"callbacks": kinds, "adapter": EncoderDecoder()})
    new = kind(configuration(**groups))
    new.training.batches = SimpleNamespace(end_of_epoch=lambda: True, iterations_in_epoch=0)
    return new
