"""A task and a callback of one's own: language modelling that records how its embeddings grow.

fairseq-train DATA-BIN --user-dir examples/own_task --task language_modeling_watched \
        --arch transformer_lm --tokens-per-sample 64 --max-tokens 1024 --lr 0.001 --optimizer adam
"""

from collections.abc import Mapping
from typing import Any

from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from rbn_fairseq.callbacks import Callback, WithCallbacks, with_options
from rbn_fairseq.callbacks.resume import Resume
from rbn_fairseq.callbacks.running_statistics import RunningStatistics
from rbn_fairseq.callbacks.start import Start
from rbn_fairseq.callbacks.tid_monitor import TIDMonitor
from rbn_fairseq.measuring.adapters import DecoderOnly
from rbn_fairseq.measuring.records import write_records
from rbn_fairseq.norms.moments import process_rank
from rbn_fairseq.tasks.repairs import FairseqRepairs


class EmbeddingNorm(Callback):
    """Writes the mean norm of the decoder's embeddings to ``SAVE_DIR/embedding.jsonl``.

    And by which factor it grew since the epoch before, which a resumed training knows, too.
    """

    _before: float | None = None

    def on_epoch_end(self, epoch: int, model: Any) -> None:
        """Add a line."""
        norm = model.decoder.embed_tokens.weight.detach().norm(dim=1).mean().item()
        growth = None if self._before is None else norm / self._before
        record = {"epoch": epoch, "update": self.training.updates, "norm": norm, "growth": growth}
        if process_rank() == 0:
            write_records(self.training.save_dir / "embedding.jsonl", [record])
        self._before = norm

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training goes on with."""
        return {"before": self._before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read it."""
        self._before = state["before"]


CALLBACKS = (Start, RunningStatistics, Resume, TIDMonitor, EmbeddingNorm)


@register_task(
    "language_modeling_watched", dataclass=with_options(LanguageModelingConfig, CALLBACKS)
)
class WatchedLanguageModelingTask(WithCallbacks, FairseqRepairs, LanguageModelingTask):
    """fairseq's language modelling, with callbacks."""

    callbacks = CALLBACKS
    adapter = DecoderOnly()
