import pytest
from fairseq import utils
from torch.nn import functional


@pytest.fixture
def double_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's softmax in the precision of its input: fairseq's own is fp32 even of fp64.

    Otherwise rounding of 6e-8, other on other processors and for other shapes, enters models that
    are compared in fp64.
    """
    for name in ("softmax", "log_softmax"):
        function = getattr(functional, name)
        monkeypatch.setattr(
            utils, name, lambda x, dim, onnx_trace=False, function=function: function(x, dim=dim)
        )
