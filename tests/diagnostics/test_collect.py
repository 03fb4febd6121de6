"""Batch statistics by layer, against networks computed by hand in float64 and torch's own norms."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oracles
from rbn_fairseq.diagnostics import (
    batch_norms,
    collect_moments,
    population_norms,
    recalibrate,
)
from rbn_fairseq.diagnostics.collect import measuring
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    LayerNorm,
    LengthBins,
    PowerNorm,
    PowerNormOptions,
    ValidTokens,
    lay_out,
)
from small_models import build, sentences


class Network(nn.Module):
    """Two batch norms of different widths behind linear maps; the second may be skipped."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.dropout = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.3)
        self.norm1, self.norm2 = BatchNorm(6), BatchNorm(3)
        self.plain = LayerNorm(3)

    def forward(self, x, valid=None, skip=False):
        tokens = None if valid is None else ValidTokens(valid)
        x = self.norm1(self.dropout(self.fc1(x)), tokens)
        return x if skip else self.plain(self.norm2(self.fc2(x), tokens))

    def moments_by_hand(self, x, valid):
        """Moments that the two norms see in training."""
        hidden = F.linear(x, self.fc1.weight, self.fc1.bias)[valid]
        normalised, *first = oracles.batch_norm(hidden, self.norm1.weight, self.norm1.bias)
        second = oracles.moments(F.linear(normalised, self.fc2.weight, self.fc2.bias))
        return [*first, *second]


@pytest.fixture
def model():
    model = Network().double()
    for norm in (model.norm1, model.norm2):  # far from the batches', to show if they are used
        norm.population.set(5 + torch.rand(norm.weight.shape), 9 + torch.rand(norm.weight.shape))
    return model


def forward(model, batch):
    return model(*batch)


def make_batches(lengths=((3, 2), (5, 1, 4), (1,))):
    batches = []
    for part in lengths:
        valid = oracles.real_tokens(6, list(part))
        batches.append((3 * torch.randn(*valid.shape, 4, dtype=torch.double), valid))
    return batches


@pytest.mark.parametrize("mode", [True, False], ids=["from training", "from evaluation"])
def test_moments_are_those_of_training_without_dropout(model, mode):
    batches = make_batches()
    layers = collect_moments(model.train(mode), batches, forward)
    expected = [model.moments_by_hand(*batch) for batch in batches]
    assert list(layers) == ["norm1", "norm2"]
    for index, moments in enumerate(layers.values()):
        mean, var = (torch.stack([row[2 * index + i] for row in expected]) for i in (0, 1))
        torch.testing.assert_close(moments.mean, mean)  # fp64 rounding
        torch.testing.assert_close(moments.var, var)
        assert moments.count.tolist() == [5, 10, 1]
        assert not moments.mean.requires_grad


def assert_undisturbed(model, action):
    """An action leaves modes, weights, statistics and the random number generator as they were."""
    modes = [module.training for module in model.modules()]
    generator, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    action()
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("frozen_part", ["", "norm1", "dropout"])
@pytest.mark.parametrize("mode", [True, False])
def test_leaves_the_model_and_the_generator_alone(model, dropout, frozen_part, mode):
    model.train(mode)
    if frozen_part:
        model.get_submodule(frozen_part).train(not mode)
    assert_undisturbed(
        model, lambda: collect_moments(model, make_batches_without_rng(), forward, dropout)
    )
    assert all(parameter.grad is None for parameter in model.parameters())


def make_batches_without_rng():
    valid = oracles.real_tokens(6, [6, 2])
    return [(torch.linspace(-1, 2, 48, dtype=torch.double).view(6, 2, 4).sin(), valid)] * 2


def test_restores_everything_when_a_forward_fails(model):
    model.eval()

    def broken(model, batch):
        forward(model, batch)
        raise KeyError

    def action():
        with pytest.raises(KeyError):
            collect_moments(model, make_batches_without_rng(), broken, dropout=True)

    assert_undisturbed(model, action)


def test_skipped_layers_and_empty_batches_are_left_out(model):
    (x, valid), (y, _), _ = make_batches(((3, 2), (6, 6), (1,)))
    batches = [(x, valid), (y, None, True), (x, torch.zeros_like(valid))]
    layers = collect_moments(model, batches, forward)
    assert layers["norm1"].count.tolist() == [5, 12]
    assert layers["norm2"].count.tolist() == [5]
    assert list(collect_moments(model, [(x, valid, True)], forward)) == ["norm1"]
    assert collect_moments(model, [], forward) == {}


def test_a_layer_that_runs_twice_counts_twice(model):
    x, valid = make_batches()[0]

    def twice(model, batch):
        model(*batch)
        model(2 * batch[0], batch[1])

    moments = collect_moments(model, [(x, valid)], twice)["norm1"]
    expected = [model.moments_by_hand(factor * x, valid)[0] for factor in (1, 2)]
    torch.testing.assert_close(moments.mean, torch.stack(expected))


def test_other_norms_divide_by_the_batch_and_are_reported_only_where_named():
    model = nn.Sequential(PowerNorm(3, PowerNormOptions(warmup=0)), BatchNorm(3)).double().eval()
    model[0].population.running_square.fill_(4.0)
    x = torch.randn(9, 3, dtype=torch.double) + 1
    divided = x / torch.sqrt(x.square().mean(0) + 1e-5)

    alone = collect_moments(model, [x])
    assert list(alone) == ["1"]
    torch.testing.assert_close(alone["1"].mean[0], divided.mean(0))
    norms = population_norms(model)
    assert list(norms) == ["0", "1"]
    both = collect_moments(model, [x], norms=norms)
    torch.testing.assert_close(both["0"].var[0], x.square().mean(0))
    assert not both["0"].mean.any()
    torch.testing.assert_close(both["1"].mean[0], divided.mean(0))


KINDS = {
    "1d": (nn.BatchNorm1d, (7, 3)),
    "1d with length": (nn.BatchNorm1d, (5, 3, 4)),
    "2d": (nn.BatchNorm2d, (5, 3, 4, 2)),
    "3d": (nn.BatchNorm3d, (5, 3, 1, 2, 2)),
    "sync": (nn.SyncBatchNorm, (5, 3, 4)),
    "without statistics": (lambda c: nn.BatchNorm1d(c, track_running_stats=False), (7, 3)),
    "without affine map": (lambda c: nn.BatchNorm1d(c, affine=False), (7, 3)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", [True, False])
def test_moments_are_what_torch_normalises_with(name, mode):
    build, shape = KINDS[name]
    norm = build(3).train(mode)
    batches = [2 * torch.randn(shape) + index for index in range(3)]
    if norm.running_mean is not None:
        norm(batches[0] + 5)  # statistics far from the batches'
    state = copy.deepcopy(norm.state_dict())
    moments = collect_moments(norm, batches)[""]
    for index, batch in enumerate(batches):
        # torch's own training statistics, by a momentum of 1; its variance is unbiased.
        judge = nn.BatchNorm1d(3, momentum=1.0)
        rows = batch.movedim(1, -1).reshape(-1, 3)
        judge(rows)
        torch.testing.assert_close(moments.mean[index].float(), judge.running_mean)
        unbiased = moments.var[index].float() * len(rows) / (len(rows) - 1)
        torch.testing.assert_close(unbiased, judge.running_var)
        assert moments.count[index] == len(rows)
    assert moments.length is None  # they know of no sentences
    assert norm.training == mode
    for key, value in norm.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert norm.track_running_stats == (norm.running_mean is not None)
    if norm.running_mean is None:
        assert moments.running is None
    else:
        torch.testing.assert_close(moments.running[0].float(), norm.running_mean)
        torch.testing.assert_close(moments.running[1].float(), norm.running_var)
    assert not norm._forward_pre_hooks


def test_running_statistics_are_copies():
    norm = nn.BatchNorm1d(3).double()
    moments = collect_moments(norm, [torch.randn(4, 3).double()])[""]
    norm(5 + torch.randn(4, 3).double())
    assert not moments.running[0].any() and norm.running_mean.all()


SENTENCES = [[3, 5, 1], [2, 2], [7], [0, 4]]  # lengths by batch; padding of one sentence only
EDGES, CENTRES = [1.0, 3.0, 5.0, 7.0], [2.0, 4.0, 6.0]
OPTIONS = BatchNormOptions(length_bins=3)


def make_padded(lengths=SENTENCES):
    found = []
    for own in lengths:
        valid = oracles.real_tokens(max(own) + 1, own)  # a row of padding
        x = 2 + (1 + len(found)) * torch.randn(*valid.shape, 3, dtype=torch.double)
        found.append((x.masked_fill(~valid.unsqueeze(2), torch.nan), valid))
    return found


def forward_padded(norm, batch):
    return norm(batch[0], ValidTokens(batch[1]))


@pytest.mark.parametrize("kind", [BatchNorm, PowerNorm])
def test_mean_length_of_a_tokens_sentence(kind):
    norm = kind(3).double()
    batches = make_padded([*SENTENCES[:2], [0, 0], *SENTENCES[2:]])  # one without any token
    found = collect_moments(norm, batches, forward_padded, norms={"": norm})[""]
    # (3 * 3 + 5 * 5 + 1 * 1) / 9 and so on
    assert found.length.tolist() == pytest.approx([35 / 9, 2, 7, 4])
    assert found.count.tolist() == [9, 4, 7, 4]


def of_rows(norm, batch):
    x, valid = batch
    (layout,) = lay_out(valid, time_first=True)
    return norm(layout.pack(x), layout)


@pytest.mark.parametrize("length_bins", [1, 3])
def test_rows_with_a_layout_are_measured_as_padded_tensors(norm, length_bins):
    norm = norm if length_bins > 1 else BatchNorm(3).double()
    batches = make_padded()
    padded, rows = (collect_moments(norm, batches, way)[""] for way in (forward_padded, of_rows))
    for name in ("mean", "var", "count", "length"):
        assert torch.equal(getattr(padded, name), getattr(rows, name))
    if length_bins > 1:
        both = (moments.bins.estimate("pooled") for moments in (padded, rows))
        assert all(map(torch.equal, *both))


@pytest.mark.parametrize("options", [BatchNormOptions(), OPTIONS], ids=["plain", "by length"])
@pytest.mark.parametrize("tokens", [None, ValidTokens()], ids=["unknown", "all real"])
def test_without_a_mask_lengths_are_known_where_tokens_are_or_norms_ask(options, tokens):
    batches = [torch.randn(length, 2, 3, dtype=torch.double) for length in (4, 1, 6)]
    norm = BatchNorm(3, options).double()
    length = collect_moments(norm, batches, lambda norm, x: norm(x, tokens))[""].length
    known = tokens is not None or options is OPTIONS
    assert (length.tolist() == [4, 1, 6]) if known else length is None


def statistics_by_hand(batches, estimate):
    """Each bin's mean, variance and number of tokens, over batches."""
    found = []
    for parts in zip(*(oracles.by_bin(*batch, EDGES) for batch in batches), strict=True):
        parts = [part for part in parts if len(part)]
        if not parts:
            found.append((torch.zeros(3).double(), torch.zeros(3).double(), 0))
            continue
        number = sum(map(len, parts))
        moments = [oracles.moments(part) for part in parts]
        mean, var = (
            sum(len(part) * own[at] for part, own in zip(parts, moments, strict=True)) / number
            for at in (0, 1)
        )
        if estimate == "pooled":
            mean, var = oracles.moments(torch.cat(parts))
        found.append((mean, var, number))
    return found


@pytest.fixture
def norm():
    norm = BatchNorm(3, OPTIONS).double()
    norm.population.set_bins(LengthBins(np.array(EDGES), np.array(CENTRES)))
    return norm


@pytest.mark.parametrize("lengths", [SENTENCES, [[1, 2], [2], [6, 6, 2]]], ids=["all", "one empty"])
@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
def test_statistics_by_bin(norm, estimate, lengths):
    batches = make_padded(lengths)
    before = [buffer.clone() for buffer in norm.buffers()]
    found = collect_moments(norm, batches, forward_padded)[""].bins.estimate(estimate)
    for at, (mean, var, number) in enumerate(statistics_by_hand(batches, estimate)):
        assert found.n[at] == number
        torch.testing.assert_close(found.mean[at], mean)  # fp64 rounding
        torch.testing.assert_close(found.var[at], var)
    assert all(map(torch.equal, norm.buffers(), before))


@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
def test_recalibrated_bins(norm, estimate):
    batches = make_padded([*SENTENCES, [1], [1, 2, 2]])
    for _ in range(2):  # it starts from nothing that was there before
        recalibrate(norm, batches, forward_padded, estimate)
    mean, var = norm.population.look_up(torch.tensor(CENTRES))
    expected = statistics_by_hand(batches, estimate)
    torch.testing.assert_close(mean, torch.stack([own for own, _, _ in expected]))
    torch.testing.assert_close(var, torch.stack([own for _, own, _ in expected]))


def test_torchs_norm_called_by_keyword():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(input=x)

    x = torch.randn(8, 3)
    (moments,) = collect_moments(Model(), [x]).values()
    torch.testing.assert_close(moments.mean[0], x.mean(0).double())


def test_a_lazy_norm_is_refused_and_left_alone():
    model = nn.Sequential(nn.Linear(3, 3), nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match="`1` is a lazy norm"):
        collect_moments(model, [torch.randn(8, 3)])
    model(torch.randn(8, 3))
    assert collect_moments(model, [torch.randn(8, 3)]).keys() == {"1"}
    without = nn.LazyBatchNorm1d(affine=False)  # has lazy buffers alone
    with pytest.raises(ValueError, match="lazy norm"):
        collect_moments(nn.Sequential(without), [torch.randn(8, 3)])


def test_statistics_of_groups_and_threads_are_refused():
    sync = nn.SyncBatchNorm(3, process_group=object())
    for model, words in ((sync, "`process_group`"), (nn.DataParallel(nn.BatchNorm1d(3)), "module")):
        with pytest.raises(ValueError, match=words):
            collect_moments(model, [torch.randn(8, 3)])


def test_a_compiled_model_is_measured():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    compiled, batches = torch.compile(model, backend="eager"), [torch.randn(8, 3)]
    with measuring(compiled):
        compiled(batches[0])
    (actual,) = collect_moments(compiled, batches).values()
    (expected,) = collect_moments(model, batches).values()
    torch.testing.assert_close((actual.mean, actual.var), (expected.mean, expected.var))


def test_layers_that_a_batch_leaves_out_keep_their_place():
    norms = nn.ModuleList(BatchNorm(3) for _ in range(3))
    batches = [(torch.randn(4, 3), skip) for skip in (0, None, 2)]

    def forward(model, batch):
        for place, norm in enumerate(model):
            if place != batch[1]:
                norm(batch[0])

    assert list(collect_moments(norms, batches, forward)) == ["0", "1", "2"]


@pytest.mark.parametrize("placement", ["post", "standard", "peri", "sub"])
def test_layers_come_in_the_order_in_which_they_run(placement):
    """They are not registered in it: the embedding's norm is the last of all there."""
    options = {"norm_encoder": "batch@embedding:batch" if placement != "sub" else "batch"}
    if placement != "post":
        before = {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
        options |= before | {"norm_placement": placement}
    model, ran = build(**options), []
    for name, norm in batch_norms(model).items():
        norm.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    tokens = sentences([5, 3], 5, left_pad=True)
    found = collect_moments(model, [tokens], lambda model, x: model.encoder(x, x.ne(1).sum(1)))
    assert list(found) == ran and len(ran) > 4
    assert placement == "sub" or ran[0] == "encoder.layernorm_embedding"


def test_with_dropout_no_buffer_moves():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
        nn.InstanceNorm1d(5, track_running_stats=True),
        BatchNorm(3),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    collect_moments(model, torch.randn(2, 4, 5, 3) + 7, dropout=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
