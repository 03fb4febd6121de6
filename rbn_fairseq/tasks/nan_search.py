"""fairseq's search for the module that makes NaN, which does the failed step again."""

from typing import Any

from fairseq.models import FairseqEncoder
from torch import nn

__all__ = ["NanSearchTask"]


class NanSearchTask:
    """Mixin for a fairseq task; put it before the task among the bases.

    Lets the search come to its end, and to fairseq's own error. Its ``NanDetector`` registers
    torch's non-full backward hooks on every module. For these torch looks for a tensor in the
    output; an encoder's is a dictionary of lists, and torch raises ``StopIteration``.
    """

    def train_step(self, sample: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Do fairseq's step; in the search, without the hooks that encoders cannot have."""
        for part in model.modules():
            if isinstance(part, FairseqEncoder) and part._is_full_backward_hook is False:
                part._backward_hooks.clear()
        return super().train_step(sample, model, *args, **kwargs)  # type: ignore[misc]
