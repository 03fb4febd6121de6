"""A model on a GPU, beside the same on the CPU in fp64."""

import copy
import math

import pytest
import torch
from fairseq import utils

from rbn_fairseq.models import attention
from small_models import BATCH, PRE, STILL, build, gradients, randomise, sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LENGTHS = ([7, 4, 15, 4, 11, 1, 40], [3, 6, 1, 26, 2, 5, 4])
WIDE = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("embed_dim", 64), ("ffn_embed_dim", 96), ("attention_heads", 4))
}
MODELS = {
    "batch, pre": BATCH | PRE,
    **{
        name: {"norm_encoder": name, "norm_decoder": name}
        for name in ("batch", "layer", "rms", "group", "derf", "prms")
    },
}
ONE_LAUNCH = "attention: in one launch (varlen_attn)"
GROUPS = "attention: in groups of sentences by length"


def outputs(model, batch):
    """Logits of the real tokens, and the gradients of a sum over them."""
    model.train()
    rows, extra = model(**batch["net_input"])
    real = extra["layout"].unpack(rows)[batch["target"] != 1]
    weights = 64 * torch.arange(real.numel(), device=real.device).view_as(real).cos()
    sums = gradients(model, (real.double() * weights).sum())
    return {"logits": real.detach(), **sums}


@pytest.fixture(params=[(4096, math.inf), (40, math.inf)], ids=["a group", "groups"], autouse=True)
def limits(request, monkeypatch):
    monkeypatch.setitem(attention._FEW_AND_LONGER, "cuda", request.param)


def difference(actual, expected):
    """Relative difference of all logits, and of all gradients, by their norms."""
    parts = []
    for names in (["logits"], [name for name in expected if name != "logits"]):
        one, other = (
            torch.cat([it[name].double().flatten().cpu() for name in names])
            for it in (actual, expected)
        )
        parts.append(((one - other).norm() / other.norm()).item())
    return parts


@pytest.mark.parametrize(
    "dtype, bound", [(torch.float32, 1e-4), (torch.float16, 0.1), (torch.bfloat16, 0.2)]
)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_logits_and_gradients_agree_with_fp64_on_the_cpu(
    options, dtype, bound, monkeypatch, caplog
):
    monkeypatch.setattr(attention, "_logged", set())
    model, batch = randomise(build(**WIDE, **STILL, **options)), sample(LENGTHS)
    expected = outputs(copy.deepcopy(model).double(), batch)
    with caplog.at_level("INFO"):
        actual = outputs(model.to("cuda", dtype), utils.move_to_cuda(batch))
    assert (GROUPS if dtype is torch.float32 else ONE_LAUNCH) in caplog.messages
    assert max(difference(actual, expected)) < bound
    if dtype is torch.float32:
        largest = max(value.abs().max().item() for value in expected.values())
        for name, value in expected.items():
            atol = bound * value.abs().max().item() + 1e-6 * largest
            torch.testing.assert_close(actual[name].double().cpu(), value, rtol=0, atol=atol)


def test_with_dropout_groups_attend(monkeypatch, caplog):
    monkeypatch.setattr(attention, "_logged", set())
    model = build(**WIDE, **STILL | {"attention_dropout": 0.1}).to("cuda", torch.float16)
    with caplog.at_level("INFO"):
        values = outputs(model, utils.move_to_cuda(sample(LENGTHS)))
    assert GROUPS in caplog.messages and ONE_LAUNCH not in caplog.messages
    assert all(value.isfinite().all() for value in values.values())
