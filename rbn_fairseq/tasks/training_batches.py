"""The iterator over the training batches, for what looks at them besides the training."""

from typing import Any

__all__ = ["TrainingBatchesTask"]


class TrainingBatchesTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    Attributes:
        training_batches: fairseq's iterator over the epochs of the training set, once made.
    """

    cfg: Any
    training_batches: Any

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator, and remember the training one."""
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        if dataset is self.datasets.get(self.cfg.train_subset):  # type: ignore[attr-defined]
            self.training_batches = iterator
        return iterator
