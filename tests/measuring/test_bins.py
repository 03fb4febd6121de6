"""Bins of sentence lengths for trained models, against hooks and numpy in fp64."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import ConcatDataset, Dictionary, MonolingualDataset
from fairseq.tasks.translation import load_langpair_dataset

import runs
from command import completed, rbn, user_error
from rbn_fairseq.checkpoints.average import average_checkpoints
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.measuring.adapters import DecoderOnly, EncoderDecoder
from saved import load, training_batches

SMALL = (
    "--max-tokens", 200, "--decoder-layers", 1, "--encoder-embed-dim", 32,
    "--encoder-ffn-embed-dim", 32, "--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 32,
    "--conditioning-interval", 0, "--no-tid", "--disable-validation", "--no-epoch-checkpoints",
)  # fmt: skip


def trained(varied, factory, *options, updates=15):
    directory = factory.mktemp("trained")
    runs.train(varied, directory, *SMALL, "--max-update", updates, *options)
    return directory / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def ordinary(varied, tmp_path_factory):
    """Pre-Norm with ordinary batch norms, also behind the last layer."""
    return trained(
        varied, tmp_path_factory, "--arch", "rbn_transformer_tiny_pre", "--norm-encoder", "batch",
        "--norm-encoder-final", "batch", "--rbn-mean-weight", 0.1, "--store-ema",
    )  # fmt: skip


@pytest.fixture(scope="module")
def mixed(varied, tmp_path_factory):
    """Pre-Norm with bins, and other norms with running statistics."""
    return trained(
        varied, tmp_path_factory, "--arch", "rbn_transformer_tiny_pre", "--norm-encoder",
        "batch@0:renorm", "--norm-encoder-final", "batch", "--norm-decoder", "power@0.ffn:layer",
        "--norm-batch-length-bins", 4,
    )  # fmt: skip


def recalibrated(path, data, output, *options):
    completed("recalibrate", path, "--data", data, "--output", output, *options)
    return read_checkpoint(output)


@pytest.fixture(scope="module")
def binned(ordinary, varied, tmp_path_factory):
    path = tmp_path_factory.mktemp("binned") / "binned.pt"
    recalibrated(ordinary, varied, path, "--length-bins", 5)
    return path


@pytest.mark.parametrize("longest", [1024, 9])
def test_lengths_of_sentences_that_fairseq_may_cut(varied, longest):
    dictionaries = [Dictionary.load(str(varied / f"dict.{side}.txt")) for side in ("de", "en")]
    dataset = load_langpair_dataset(
        str(varied), "train", "de", dictionaries[0], "en", dictionaries[1], combine=False,
        dataset_impl=None, upsample_primary=-1, left_pad_source=True, left_pad_target=False,
        max_source_positions=longest, max_target_positions=1024, truncate_source=True,
    )  # fmt: skip
    real = [len(dataset[index]["source"]) for index in range(len(dataset))]
    assert EncoderDecoder().source_lengths(dataset).tolist() == real
    assert {min(real), max(real)} == {3, min(longest, 22)}
    pairs = [length + len(dataset[index]["target"]) for index, length in enumerate(real)]
    assert EncoderDecoder().tokens(dataset).tolist() == pairs
    twice = SimpleNamespace(src=ConcatDataset([dataset.src, dataset.src], [1, 2]))
    twice.src_sizes = twice.src.sizes
    assert EncoderDecoder().source_lengths(twice).tolist() == 3 * real


@pytest.mark.parametrize("first", [False, True])
def test_lengths_of_blocks_with_a_token_put_before(first):
    """By --add-bos-token, which fairseq's sizes do not know."""
    dictionary, text = Dictionary(), torch.tensor([5, 6, 7, 2])
    blocks = [(text[:n], text[:n], text[:n]) for n in (1, 4)]
    dataset = MonolingualDataset(
        blocks, [1, 4], dictionary, targets=["future"], add_bos_token=first
    )
    lengths = [(len(dataset[n]["source"]), len(dataset[n]["target"])) for n in range(2)]
    sides = DecoderOnly().source_lengths(dataset), DecoderOnly().target_lengths(dataset)
    assert list(zip(*map(list, sides), strict=True)) == lengths


def expected_statistics(path, data, edges, pooled):
    """Mean and variance, by norm and bin, (bins, 2, C), over all training batches.

    A hook puts batch norm's definition in the place of every norm; all in fp64.
    """
    model, cfg, task = load(path, data)
    model.double().eval()
    dataset, batches = training_batches(cfg, task)
    seen, lengths = {}, None

    def replace(name):
        def normalise(module, inputs, output):
            x = inputs[0]  # (N, C), short sentences first
            which = np.digitize(np.repeat(lengths, lengths), edges[1:-1])
            for number in range(len(edges) - 1):
                if (which == number).any():
                    part = x.numpy()[which == number]
                    seen.setdefault(name, {}).setdefault(number, []).append(part)
            mean, var = x.mean(0), x.var(0, correction=0)
            return (x - mean) / (var + 1e-5).sqrt() * module.weight + module.bias

        return normalise

    for name, part in model.named_modules():
        if name.endswith("layer_norm") and hasattr(part, "population"):
            part.register_forward_hook(replace(name))
    with torch.no_grad():
        for batch in batches:
            source = dataset.collater([dataset[index] for index in batch])["net_input"]
            lengths = sorted(source["src_tokens"].ne(dataset.src_dict.pad()).sum(1).tolist())
            model.encoder(source["src_tokens"], source["src_lengths"])
    found = {}
    for name, bins in seen.items():
        rows = []
        for number in range(len(edges) - 1):
            parts = bins[number]
            if pooled:
                everything = np.concatenate(parts)
                rows.append([everything.mean(0), everything.var(0)])
            else:
                counts = [len(part) for part in parts]
                moments = [[part.mean(0), part.var(0)] for part in parts]
                rows.append(np.average(moments, axis=0, weights=counts))
        found[name] = np.array(rows)
    return found


def found_statistics(model):
    """The same from a checkpoint."""
    names = [name.removesuffix(".bin_mean") for name in model if name.endswith(".bin_mean")]
    found = {}
    for name in names:
        kinds = ("weight", "mean", "var")
        weight, mean, var = (model[f"{name}.bin_{kind}"].double() for kind in kinds)
        assert weight.sum().item() == pytest.approx(1)
        rows = torch.stack([mean, var], 1) / weight[:, None, None]
        found[name.removesuffix(".population")] = rows.numpy()
    return found


@pytest.mark.parametrize(
    "options, edges",
    [
        (("--length-bins", 5), [3, 6.5, 10.5, 14.5, 18.5, 22]),
        (("--length-bins", 4, "--population", "pooled"), [3, 7.5, 12.5, 17.5, 22]),
    ],
    ids=["mean-of-batches", "pooled"],
)
def test_bins_are_those_of_the_training_batches(ordinary, varied, tmp_path, options, edges):
    state = recalibrated(ordinary, varied, tmp_path / "out.pt", *options)
    model, before = state["model"], read_checkpoint(ordinary)["model"]
    expected = expected_statistics(ordinary, varied, edges, "pooled" in options)
    found = found_statistics(model)
    assert found.keys() == expected.keys() and len(found) == 5
    for name, value in expected.items():
        assert model[f"{name}.population.edges"].tolist() == edges
        # fp32 through two layers against fp64.
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)
    estimate = ("--population", state["rbn_fairseq"]["recalibrated"]["population"])
    plain = recalibrated(ordinary, varied, tmp_path / "plain.pt", *estimate)["model"]
    for name, value in plain.items():  # but for the bins, as without them
        assert torch.equal(model[name], value), name
    assert {name for name in model if name not in before} == {
        f"{name}.population.{kind}" for name in found
        for kind in ("edges", "centres", "bin_weight", "bin_mean", "bin_var")
    }  # fmt: skip
    number = len(edges) - 1
    assert state["rbn_fairseq"]["recalibrated"]["length_bins"] == number
    assert state["cfg"]["model"]["norm_batch_length_bins"] == number
    told = " ".join(rbn("doctor", "--checkpoint", tmp_path / "out.pt").output.split())
    assert f"running statistics of 5 norms, some for {number} bins of sentence lengths" in told


def test_the_moving_average_goes_with_its_bins(binned, ordinary, varied, tmp_path):
    assert "ema" in read_checkpoint(ordinary)["extra_state"]
    assert "ema" not in read_checkpoint(binned)["extra_state"]
    plain = recalibrated(ordinary, varied, tmp_path / "plain.pt", "--batches", 1)
    assert "ema" in plain["extra_state"]


def test_one_bin_takes_them_away(binned, ordinary, varied, tmp_path):
    state = recalibrated(binned, varied, tmp_path / "one.pt", "--length-bins", 1)
    plain = recalibrated(ordinary, varied, tmp_path / "plain.pt")["model"]
    assert state["model"].keys() == plain.keys()
    assert all(torch.equal(state["model"][name], value) for name, value in plain.items())
    assert len(scores(varied, tmp_path / "one.pt")) == 64


def test_bins_are_kept_and_estimated_anew(binned, varied, tmp_path):
    state, model = read_checkpoint(binned), read_checkpoint(binned)["model"]
    for name, value in state["model"].items():
        if ".bin_" in name:
            value.fill_(7.0)
    write_checkpoint(tmp_path / "spoilt.pt", state)
    again = recalibrated(tmp_path / "spoilt.pt", varied, tmp_path / "again.pt")
    assert all(torch.equal(again["model"][name], value) for name, value in model.items())
    assert again["cfg"]["model"]["norm_batch_length_bins"] == 5
    other = recalibrated(binned, varied, tmp_path / "other.pt", "--length-bins", 3)["model"]
    assert other["encoder.layer_norm.population.edges"].shape == (4,)


def scores(data, path):
    """Hypotheses and their scores, by sentence."""
    return read_scores(runs.evaluate("generate", data, path, "--beam", 2, "--max-len-b", 4))


def read_scores(out):
    lines = [line[2:].split("\t") for line in out.splitlines() if line.startswith("H-")]
    return {int(number): (text, float(score)) for number, score, text in lines}


def assert_same_scores(found, expected):
    assert found.keys() == expected.keys()
    for number, (text, score) in expected.items():
        assert found[number] == (text, pytest.approx(score, abs=2e-4)), number  # 4 decimals, fp32


@pytest.fixture(scope="module")
def expected(binned, varied):
    return scores(varied, binned)


def test_interactive_in_any_order(expected, binned, varied, tmp_path):
    lines = (varied / "text" / "test.de").read_text().splitlines()
    order = list(range(len(lines)))
    random.Random(1).shuffle(order)
    (tmp_path / "input").write_text("".join(lines[number] + "\n" for number in order))
    out = runs.evaluate(
        "interactive", varied, binned, "--beam", 2, "--max-len-b", 4, "--input",
        tmp_path / "input", "--buffer-size", 20, "--max-tokens", 150,
    )  # fmt: skip
    found = {order[place]: value for place, value in read_scores(out).items()}
    assert_same_scores(found, expected)


def test_a_sentence_is_normalised_by_its_lengths_statistics(binned, varied):
    """The encoder's first layer, by hand, for lengths between and beyond the centres."""
    model, _, task = load(binned, varied)
    state = read_checkpoint(binned)["model"]
    name = "encoder.layers.0.self_attn_layer_norm"
    statistics, seen = found_statistics(state)[name], []
    centres = state[f"{name}.population.centres"].double().numpy()
    norm = model.eval().get_submodule(name)
    norm.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    for length in (2, 9, 15, 30):
        tokens = torch.full((1, length), task.source_dictionary.index("a"))
        model.encoder(tokens, torch.tensor([length]))
        x, y = (value.detach().double().numpy() for value in seen.pop())
        mean, var = (
            np.array([np.interp(length, centres, channel) for channel in statistics[:, kind].T])
            for kind in (0, 1)
        )
        weight, bias = (state[f"{name}.{kind}"].double().numpy() for kind in ("weight", "bias"))
        expected = (x - mean) / np.sqrt(var + 1e-5) * weight + bias
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_average(binned, ordinary, varied, tmp_path):
    completed("average", ordinary, ordinary, "--output", tmp_path / "average.pt")
    output = ("--output", tmp_path / "out.pt", "--length-bins", 5)
    result = completed("recalibrate", tmp_path / "average.pt", *output)
    assert "edges of bins: 3 6.5 10.5 14.5 18.5 22\n" in result.output
    assert "moving average" not in result.output  # the average has none
    direct = ("--output", tmp_path / "direct.pt", "--length-bins", 5)
    assert "left out: the moving average" in rbn("recalibrate", ordinary, *direct).output
    state, expected = (read_checkpoint(path) for path in (tmp_path / "out.pt", binned))
    assert state["model"].keys() == expected["model"].keys()
    for name, value in expected["model"].items():
        assert torch.equal(state["model"][name], value), name
    assert state["cfg"]["model"] == expected["cfg"]["model"]


def test_average_of_bins_is_by_what_they_have_seen(binned, tmp_path):
    state = read_checkpoint(binned)
    name = "encoder.layer_norm.population.bin_"
    for kind, value in (("weight", 3.0), ("mean", 3.0), ("var", 3.0)):
        state["model"][name + kind] *= value
    write_checkpoint(tmp_path / "other.pt", state)
    model = average_checkpoints([binned, tmp_path / "other.pt"])["model"]
    own = read_checkpoint(binned)["model"]
    mean = model[f"{name}mean"] / model[f"{name}weight"][:, None]
    torch.testing.assert_close(mean, own[f"{name}mean"] / own[f"{name}weight"][:, None])
    edges = "encoder.layer_norm.population.edges"
    assert torch.equal(model[edges], own[edges])


def test_other_bins_have_no_average(binned, tmp_path, capsys):
    state = read_checkpoint(binned)
    state["model"]["encoder.layer_norm.population.edges"][2] += 1
    other = tmp_path / "other.pt"
    write_checkpoint(other, state)
    arguments = (binned, other, "--output", tmp_path / "out.pt")
    message = user_error(capsys, "average", *arguments)
    assert "bins of sentence lengths differ" in message
    assert str(binned) in message and str(other) in message


def test_cost_of_a_model_with_bins(binned, varied, tmp_path):
    completed("cost", binned, "--json", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    nll = {row["statistics"]: row["nll"] for row in rows}
    # Its own bins are of the same training batches.
    assert nll["running"] == pytest.approx(nll["length-conditional"], rel=1e-6)
    assert len({*nll.values()}) >= 5 and nll["recalibrated"] != nll["running"]
    assert nll["running-global"] == pytest.approx(nll["recalibrated"], rel=1e-6)


def test_fold_leaves_them(mixed, varied, tmp_path):
    result = completed("fold", mixed, "--output", tmp_path / "folded.pt")
    # renorm into self-attention and fc1; power into fc1.
    assert "folded 3 norms" in result.output and "3 norms with bins" in result.output
    folded, before = (read_checkpoint(path) for path in (tmp_path / "folded.pt", mixed))
    stay = [f"encoder.{name}" for name in (
        "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm", "layer_norm")]  # fmt: skip
    assert sorted(folded["rbn_fairseq"]["folded"]["by_length"]) == sorted(stay)
    left = {name for name in folded["model"] if ".population." in name}
    statistics = tuple(f"{name}.population." for name in stay)
    assert left == {name for name in before["model"] if name.startswith(statistics)}
    assert not any(value.dtype == torch.double for value in folded["model"].values())
    assert_same_scores(scores(varied, tmp_path / "folded.pt"), scores(varied, mixed))


def refused(capsys, tmp_path, verb, *arguments):
    output = tmp_path / "refused.pt"
    message = user_error(capsys, verb, *arguments, "--output", output)
    assert not output.exists()
    return message


def test_nothing_to_fold(capsys, binned, tmp_path):
    message = refused(capsys, tmp_path, "fold", binned)
    assert all(words in message for words in (str(binned), "--norm-batch-length-bins", "as it is"))


def test_models_of_mixed_batches_get_none(capsys, ordinary, varied, tmp_path):
    state = read_checkpoint(ordinary)
    state["cfg"]["task"]["length_mixing"] = "random"
    path = tmp_path / "random.pt"
    write_checkpoint(path, state)
    message = refused(capsys, tmp_path, "recalibrate", path, "--data", varied, "--length-bins", 4)
    assert "--length-bins" in message and "--length-mixing random" in message
    recalibrated(path, varied, tmp_path / "without.pt", "--length-bins", 1)


def test_bins_that_cannot_be(capsys, ordinary, varied, tmp_path):
    how = ("--data", varied, "--length-bins", 21)
    message = refused(capsys, tmp_path, "recalibrate", ordinary, *how)
    words = ("--length-bins:", "20 different lengths", "at most 20")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "norms, words",
    [
        (("--norm-encoder", "renorm"), "--length-bins needs `batch` norms in the encoder"),
        (
            ("--norm-encoder", "batch", "--norm-decoder", "batch"),
            "--length-bins needs `batch` norms in the encoder and none in a decoder",
        ),
        (("--norm-encoder", "batch@qk:batch"), "nor at `qk` or `qkv`"),
    ],
    ids=["renorm", "decoder", "heads"],
)
def test_models_that_cannot_have_bins(varied, tmp_path_factory, tmp_path, norms, words):
    path = trained(varied, tmp_path_factory, *norms, updates=1)
    output = tmp_path / "out.pt"
    result = rbn("recalibrate", path, "--data", varied, "--output", output, "--length-bins", 4)
    assert isinstance(result.exception, ValueError) and words in str(result.exception)
    assert not output.exists()
