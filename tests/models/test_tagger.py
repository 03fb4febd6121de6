"""The tagger: its encoder is fairseq's, and its CRF that of all sequences of tags, one by one."""

from itertools import product

import pytest
import torch

from rbn_fairseq.models.config import config_class
from rbn_fairseq.models.kinds import TAGGER
from small_models import (
    STILL,
    assert_alike,
    assert_same_gradients,
    fairseqs_encoder,
    gradients,
    randomise,
)
from tagging import TAGS, build_tagger, tagged

pytestmark = pytest.mark.usefixtures("double_softmax")

BEFORE = {"encoder_normalize_before": True}
OPTIONS = {"post": {}, "pre": BEFORE}  # all others: `test_as_fairseq.py`, of the same encoder
LENGTHS = [3, 1, 4, 2, 1, 4]  # one token, no padding


def model(**options):
    """In fp64, with transitions that matter."""
    tagger = randomise(build_tagger(**STILL, **options)).double()
    with torch.no_grad():
        for weight in tagger.crf.parameters():
            weight.copy_(torch.randn(weight.shape))
    return tagger


def scores(tagger, emissions, length):
    """Scores of all sequences of tags of a text, by sequence: sums written out."""
    start, end = tagger.crf.start_transitions, tagger.crf.end_transitions
    between = tagger.crf.transitions
    return {
        tags: start[tags[0]]
        + sum(emissions[place, tag] for place, tag in enumerate(tags))
        + sum(between[one, other] for one, other in zip(tags, tags[1:], strict=False))
        + end[tags[-1]]
        for tags in product(range(emissions.shape[1]), repeat=length)
    }


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", [{}, {"norm_encoder": "batch"}])
def test_loss_and_best_tags_are_those_of_all_sequences(options, training):
    tagger = model(**options).train(training)
    given = tagged(LENGTHS, wider=1)
    output = tagger(**given["net_input"], tags=given["target"])
    best = tagger.decode(output)
    for row, length in enumerate(LENGTHS):
        each = scores(tagger, output.emissions[row], length)
        gold = tuple((given["target"][row, :length] - 3).tolist())  # <unk> is 0
        total = torch.stack([*each.values()]).logsumexp(0)
        assert_alike(output.nll[row], total - each[gold])
        assert tuple(tag - 3 for tag in best[row]) == max(each, key=each.get)
    nll, tags = tagger.nll(given, padding=1)
    assert int(tags) == sum(LENGTHS)
    assert_alike(nll, output.nll.sum())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("wider", [0, 2])
def test_emissions_are_those_of_fairseqs_encoder(options, wider):
    tagger = model(**options)
    theirs = fairseqs_encoder(tagger, **options)
    known, given = tagged(LENGTHS), tagged(LENGTHS, wider=wider)
    x = theirs.train()(known["net_input"]["src_tokens"])["encoder_out"][0].transpose(0, 1)
    projection = tagger.output_projection
    expected = (x @ projection.weight.t() + projection.bias)[:, :-1]
    output = tagger.train()(**given["net_input"])
    assert output.nll is None and output.real.sum() == sum(LENGTHS)
    real = known["target"].ne(1)
    assert_alike(output.emissions[output.real], expected[real])
    arriving = torch.randn(sum(LENGTHS), len(TAGS) + 1, dtype=torch.double)
    ours = gradients(tagger.encoder, (output.emissions[output.real] * arriving).sum())
    assert_same_gradients(ours, gradients(theirs, (expected[real] * arriving).sum()))


def test_texts_of_one_token_leave_no_weight_without_gradient():
    """DistributedDataParallel would wait for it."""
    tagger, given = build_tagger(), tagged([1, 1])
    tagger(**given["net_input"], tags=given["target"]).nll.sum().backward()
    assert not [name for name, weight in tagger.named_parameters() if weight.grad is None]


@torch.no_grad()
def test_half_precision_sums_a_long_text_in_single():
    tagger = build_tagger(**STILL).bfloat16()
    given = tagged([40, 33])
    output = tagger(**given["net_input"], tags=given["target"])
    tagger.double()
    emissions = output.emissions.double()
    tags = (given["target"] - 3).where(output.real, 0)
    expected = -tagger.crf(emissions, tags, output.real, reduction="none")
    torch.testing.assert_close(output.nll.double(), expected, rtol=1e-5, atol=0)


def test_its_tags_are_those_of_the_dictionary():
    tagger = build_tagger(("O", "B-X", "I-X", "B-Y", "I-Y"))
    assert tagger.crf.num_tags == 1 + 5


def test_its_options_and_sizes():
    options = config_class(TAGGER).__dataclass_fields__
    assert not [name for name in options if "decoder" in name]
    for name, sizes in {"conll2003": (14 * 128, 14), "resume_pre": (4 * 64, 4)}.items():
        preset = TAGGER.presets[f"rbn_transformer_tagger_{name}"]
        assert (preset["encoder_embed_dim"], preset["encoder_attention_heads"]) == sizes
        assert preset["encoder_ffn_embed_dim"] == 2 * sizes[0] and preset["dropout"] == 0.15
        assert preset["encoder_normalize_before"] == name.endswith("_pre")
