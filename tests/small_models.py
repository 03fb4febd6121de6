"""Small models, and batches of sentences of chosen lengths."""

import argparse
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from torch import Tensor, nn
from torch.nn import functional

import runs
from rbn_fairseq.criterions import LabelSmoothedCrossEntropyRBN
from rbn_fairseq.criterions.label_smoothed_cross_entropy_rbn import (
    LabelSmoothedCrossEntropyRBNConfig,
)
from rbn_fairseq.models import (
    RBNTransformerClassifier,
    RBNTransformerLanguageModel,
    RBNTransformerModel,
)

SIZES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (
        ("embed_dim", 16), ("ffn_embed_dim", 24), ("layers", 2), ("attention_heads", 2)
    )
}  # fmt: skip
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
SUB = PRE | {"norm_placement": "sub"}
DEEP = {"norm_placement": "deepnorm"}
PERI = PRE | {"norm_placement": "peri"}
HYBRID = PRE | {"norm_placement": "hybrid"}
BATCH = {"norm_encoder": "batch", "norm_decoder": "batch"}
FINALS = {"norm_encoder_final": "batch", "norm_decoder_final": "batch"}
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
# prms measures one of 16 channels by default: where that is near 0, rounding becomes large.
HALF = {"norm_prms_p": 0.5}
WORDS = 30


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


def task(pad: int = 1) -> SimpleNamespace:
    """A task with one dictionary, whose padding has this number: 1 as fairseq's, or 3."""
    dictionary = Dictionary()
    dictionary.pad_index, dictionary.unk_index = pad, 4 - pad
    for index in range(WORDS):
        dictionary.add_symbol(f"w{index}")
    return SimpleNamespace(
        source_dictionary=dictionary, target_dictionary=dictionary, keeps_statistics=True
    )


def build(model=RBNTransformerModel, pad=1, **options):
    """A model with the same first weights for the same options, or fairseq's own."""
    torch.manual_seed(3)
    name = "rbn_transformer" if issubclass(model, RBNTransformerModel) else "transformer"
    settings = argparse.Namespace(arch=name, max_source_positions=50, max_target_positions=50)
    vars(settings).update(SIZES | options)
    return model.build_model(settings, task(pad))


def build_criterion(of=None, **options):
    """The label-smoothed criterion, of a task, in training."""
    given = {"sentence_avg": False, "label_smoothing": 0.1} | options
    cfg = LabelSmoothedCrossEntropyRBNConfig(**given)
    return LabelSmoothedCrossEntropyRBN.build_criterion(cfg, of or task()).train()


def build_language_model(model=RBNTransformerLanguageModel, **options):
    """A language model with the same first weights for the same options, or fairseq's own."""
    torch.manual_seed(3)
    settings = TransformerLanguageModelConfig(max_target_positions=50, tokens_per_sample=50)
    sizes = {name: size for name, size in SIZES.items() if name.startswith("decoder")}
    widths = {f"decoder_{end}_dim": sizes["decoder_embed_dim"] for end in ("input", "output")}
    settings = argparse.Namespace(**vars(settings) | sizes | widths | options)
    return model.build_model(settings, task())


def label_task(labels: Iterable[str] = "123") -> SimpleNamespace:
    """A task of words and of labels, or tags, the first of which has the number 4."""
    both = task()
    both.target_dictionary = Dictionary()
    for label in labels:
        both.target_dictionary.add_symbol(label)
    return both


def build_classifier(model=RBNTransformerClassifier, labels="123", **options):
    """A classifier, or tagger, with the same first weights for the same options."""
    torch.manual_seed(3)
    sizes = {name: size for name, size in SIZES.items() if name.startswith("encoder")}
    settings = argparse.Namespace(max_source_positions=50, **sizes | options)
    return model.build_model(settings, label_task(labels))


def fairseqs_encoder(model, **options):
    """fairseq's encoder in fp64, with the weights of that of a classifier or tagger."""
    sizes = {name: size for name, size in SIZES.items() if name.startswith("encoder")}
    given = {"max_source_positions": 50, **STILL, **sizes, **options}
    cfg = TransformerConfig.from_namespace(argparse.Namespace(**given))
    words = task().source_dictionary
    embedding = nn.Embedding(len(words), cfg.encoder.embed_dim, words.pad())
    encoder = TransformerEncoderBase(cfg, words, embedding).double()
    encoder.load_state_dict(model.encoder.state_dict())
    return encoder


def classified(left=False, wider=0):
    """What the task makes of texts of many lengths; each label occurs.

    Args:
        left: whether texts are padded on the left.
        wider: columns of padding more than the longest text needs.
    """
    lengths = [7, 4, 5, 4, 11, 1, 4]
    tokens = sentences(lengths, max(lengths) + wider, left)
    for row, length in zip(tokens, lengths, strict=True):
        row[row.numel() - length if left else 0] = 0  # <s>
    return {
        "net_input": {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)},
        "target": torch.tensor([[4], [5], [6], [4], [5], [5], [6]]),
        "ntokens": len(lengths),
        "nsentences": len(lengths),
    }


def everywhere(name):
    """Options that put a norm wherever it may stand."""
    decoder, final = runs.decoder_plans(name, layers=2)
    return {
        "norm_encoder": name, "norm_encoder_final": name,
        "norm_decoder": decoder, "norm_decoder_final": final,
    }  # fmt: skip


def randomise(model: nn.Module) -> nn.Module:
    """Give biases, gains and statistics values that a new model does not have."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name:
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return model


def sentences(lengths, total, left_pad, seed=0, pad=1) -> Tensor:
    """Tokens ``(B, total)`` of sentences of these lengths; the same for any padding."""
    rows = []
    generator = torch.Generator().manual_seed(seed)
    for length in lengths:
        words = torch.randint(4, WORDS + 4, (length,), generator=generator)
        pads = words.new_full((total - length,), pad)
        rows.append(torch.cat([pads, words] if left_pad else [words, pads]))
    return torch.stack(rows) if rows else torch.zeros(0, total, dtype=torch.long)


def batch(source=7, target=6):
    """A source with pads on the left and a target with pads on the right, as fairseq's are."""
    lengths = [7, 4, 5]
    return (
        sentences(lengths, source, left_pad=True),
        torch.tensor(lengths),
        sentences([3, 6, 1], target, left_pad=False, seed=1),
    )


def real_tokens(lengths) -> Tensor:
    """Mask ``(B, T)`` of sentences, True = real: every second one padded on the left."""
    total = max(lengths, default=0)
    rows = [torch.arange(total) < length for length in lengths]
    rows = [row.flip(0) if number % 2 else row for number, row in enumerate(rows)]
    return torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.bool)


#: Lengths of sources and targets of batches to compare models on.
LENGTHS = {
    "many": ([7, 4, 5, 4, 11, 1, 4], [3, 6, 1, 6, 2, 5, 4]),
    "no padding": ([5, 5], [4, 4]),
    "one token": ([1], [1]),
    "one sentence": ([6], [9]),
}


def sample(lengths=LENGTHS["many"], left=(True, False), wider=0, pad=1):
    """What fairseq's data sets make of sentences of these lengths: the same for any padding.

    Args:
        lengths: of sources and of targets, in tokens.
        left: whether sources, and whether targets, are padded on the left.
        wider: columns of padding more than the longest sentence needs.
        pad: the padding's number.
    """
    sources, targets = lengths
    source = sentences(sources, max(sources, default=0) + wider, left[0], pad=pad)
    width = max(targets, default=0) + wider
    target = sentences(targets, width, left[1], seed=1, pad=pad)
    inputs = sentences(targets, width, left[1], seed=1, pad=pad)
    for row, length in enumerate(targets):  # </s> in front, and the last token left out
        first = width - length if left[1] else 0
        words = target[row, first : first + length]
        inputs[row, first : first + length] = torch.cat([words.new_tensor([2]), words])[:length]
    return {
        "net_input": {
            "src_tokens": source,
            "src_lengths": torch.tensor(sources),
            "prev_output_tokens": inputs,
        },
        "target": target,
        "ntokens": sum(targets),
        "nsentences": len(targets),
    }  # fmt: skip


def assert_alike(one: Tensor, other: Tensor, what: str = "", noise: float = 0.0) -> None:
    """Equal but for the rounding of fp64, 2e-16 of the largest value.

    Models of two layers amplify it: some 1e4 times in sub-LN without norms, whose activations
    grow. ``noise`` is what sums that cancel leave of larger numbers.
    """
    largest = other.abs().max() if other.numel() else other.new_zeros(())
    torch.testing.assert_close(
        one, other, rtol=0, atol=(1e-10 * largest + noise).item(),
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip


def gradients(model: nn.Module, value: Tensor) -> dict[str, Tensor]:
    """Gradients of ``value`` by parameter; 0 where there is none."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    values = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, parameters, values, strict=True)
    }


def assert_same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same but for rounding, which is all of those that are 0.

    Those of the biases of keys are, under a softmax, and of what comes before a batch norm.
    """
    assert actual.keys() == expected.keys() and expected
    noise = 1e-13 * max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert_alike(actual[name], gradient, name, noise)
