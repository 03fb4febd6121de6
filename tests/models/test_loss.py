"""The loss without logits, against fairseq's function of all log-probabilities."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from rbn_fairseq.models.loss import HAS_CHUNKS, Wanted, label_smoothed_loss, pack_targets
from rbn_fairseq.norms import lay_out
from small_models import real_tokens

pytestmark = pytest.mark.skipif(not HAS_CHUNKS, reason="torch before 2.13")


def problem(rows, channels, types, dtype, scale=1.0):
    x = torch.randn(rows, channels, dtype=dtype, requires_grad=True)
    weight = (scale * torch.randn(types, channels, dtype=dtype)).requires_grad_()
    return x, weight, torch.randint(types, (rows,))


def ours_of(x, weight, target, smoothing, **options):
    """Ours, with all rows as one sentence."""
    (layout,) = lay_out(torch.ones(1, len(x), dtype=torch.bool))
    wanted = Wanted(target.view(1, -1), -1, smoothing, **options)
    return label_smoothed_loss(x, weight, layout, wanted)


def of_fairseq(x, weight, target, smoothing):
    return label_smoothed_nll_loss((x @ weight.T).log_softmax(-1), target, smoothing)


SMOOTHING = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])


@SMOOTHING
@pytest.mark.parametrize(
    "shape", [(1, 1, 2), (7, 5, 3), (511, 4, 9), (512, 4, 9), (513, 4, 9), (1300, 3, 50)], ids=str
)
def test_loss_and_gradients_are_fairseqs(shape, smoothing):
    """Also of less than a chunk of rows, of one and a row more, and of a last one in part."""
    x, weight, target = problem(*shape, torch.double)
    ours = ours_of(x, weight, target, smoothing)
    loss, nll = of_fairseq(x, weight, target, smoothing)
    torch.testing.assert_close(ours.loss, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.nll, nll.detach(), rtol=1e-12, atol=0)
    assert not ours.nll.requires_grad
    expected = torch.autograd.grad(3 * loss, (x, weight))
    actual = torch.autograd.grad(3 * ours.loss, (x, weight))  # a factor, as of a loss scale
    for ours_, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=0, atol=1e-12 * theirs.abs().max().item())


@SMOOTHING
def test_fp32_rounds_no_more_than_fairseqs(smoothing):
    x, weight, target = problem(1000, 64, 3000, torch.float, scale=0.3)
    exact = [it.detach().double().requires_grad_() for it in (x, weight)]
    loss, _ = of_fairseq(*exact, target, smoothing)
    expected = torch.autograd.grad(loss, exact)

    def errors(found):
        gradients = torch.autograd.grad(found, (x, weight))
        return [
            (found.double() - loss).abs() / loss,
            *(
                (a - b).abs().max() / b.abs().max()
                for a, b in zip(gradients, expected, strict=True)
            ),
        ]

    ours = errors(ours_of(x, weight, target, smoothing).loss)
    theirs = errors(of_fairseq(x, weight, target, smoothing)[0])
    for error, other in zip(ours, theirs, strict=True):
        assert error <= 4 * other + 1e-6, (ours, theirs)


@pytest.mark.parametrize("change", ["wider", "narrower", "fewer sentences", "more", "transposed"])
def test_targets_of_other_tokens_are_refused(change):
    mask = real_tokens([3, 5, 2])
    (layout,) = lay_out(mask)
    target = torch.full(mask.shape, 7).where(mask, 1)
    changed = {
        "wider": torch.cat([target, target[:, :1]], 1),
        "narrower": target[:, 1:],
        "fewer sentences": target[:2],
        "more": torch.cat([target, target]),
        "transposed": target.T,
    }[change]
    with pytest.raises(ValueError, match="`target`.*`prev_output_tokens`"):
        pack_targets(changed, layout)
    assert pack_targets(target, layout).tolist() == [7] * 10
