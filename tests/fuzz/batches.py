"""Batches of all shapes, masks, dtypes and layouts in memory, and what holds of them."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from rbn_fairseq.norms import ValidTokens

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Batch(NamedTuple):
    """``x``: (T, B, C), in its layout; ``valid``: (T, B), or ``None`` = all."""

    x: Tensor
    valid: Tensor | None

    @property
    def tokens(self) -> ValidTokens:
        """The view that norms are given."""
        return ValidTokens(self.valid)

    def real(self, values: Tensor) -> Tensor:
        """Those of real tokens, ``(tokens, C)``."""
        rows = values.reshape(-1, values.shape[-1])
        return rows if self.valid is None else rows[self.valid.reshape(-1)]


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The values of ``x: (T, B, C)`` elsewhere in memory."""
    time, batch, channels = x.shape
    if layout == "batch first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels first":
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    if layout == "every other":
        wide = torch.full((2 * time, batch, 3 * channels), torch.nan, dtype=x.dtype)
        wide[::2, :, ::3] = x
        return wide[::2, :, ::3]
    if layout == "expanded":  # one sentence, repeated without memory of its own
        return x[:, :1].expand(time, batch, channels)
    return x


@st.composite
def batches(draw, channels, dtypes=DTYPES) -> Batch:
    """Any batch; at padding there are values like all others."""
    time, size = draw(st.integers(0, 6)), draw(st.integers(0, 4))
    torch.manual_seed(draw(st.integers(0, 2**32)))  # of all that the test draws, too
    x = torch.randn(time, size, channels, dtype=torch.double)
    x = (x * draw(st.sampled_from([0.01, 1.0, 30.0])) + draw(st.sampled_from([0.0, 3.0]))).to(
        draw(st.sampled_from(dtypes))
    )
    layout = draw(st.sampled_from(["", "batch first", "channels first", "every other", "expanded"]))
    share = draw(st.sampled_from([None, 0.0, 0.5, 0.9, 1.0]))  # of real tokens
    x, valid = _laid_out(x, layout if size else ""), None
    if share is not None:
        valid = torch.rand(time, size) < share
        if draw(st.booleans()):
            valid = valid.t().contiguous().t()
    return Batch(x, valid)


def padded_with(batch: Batch, filling: float) -> Tensor:
    """``x`` with something else at padding, in a memory of its own."""
    if batch.valid is None:
        return batch.x.clone()
    return torch.where(batch.valid.unsqueeze(-1), batch.x, filling)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """For values of size 1 that went through fp32, and once to their own dtype."""
    return {
        "rtol": max(4e-4, 2 * torch.finfo(dtype).eps),
        "atol": max(4e-4, torch.finfo(dtype).eps),
    }
