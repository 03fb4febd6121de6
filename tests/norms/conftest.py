import pytest
import torch

from rbn_fairseq.norms import kernels


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where batch norm runs by its kernels: a GPU, or the CPU in Triton's interpreter."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr(kernels, "serve", lambda *tensors: True)
    return "cpu"
