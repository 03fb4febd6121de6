import pytest
import torch

import gpu_operations


@pytest.fixture
def device():
    """Where batch norm takes a GPU's operations: a GPU, or the CPU with stand-ins for them."""
    if torch.cuda.is_available():
        yield "cuda"
    else:
        with gpu_operations.on_the_cpu():
            yield "cpu"
