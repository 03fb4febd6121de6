"""Small taggers, and texts with a tag for each token."""

import random

import torch

from rbn_fairseq.models import RBNTransformerTagger
from small_models import build_classifier, sentences

TAGS = ("O", "B-X", "I-X")
_PLACES = ("amber", "bern", "cork", "delft", "essen")


def build_tagger(tags=TAGS, **options):
    """A tagger with the same first weights for the same options."""
    return build_classifier(RBNTransformerTagger, tags, **options)


def tagged(lengths, tags=TAGS, wider=0, seed=0):
    """A batch of texts of so many tokens and their tags: the same for any padding."""
    width = max(lengths) + wider
    tokens = sentences([length + 1 for length in lengths], width + 1, left_pad=False, seed=seed)
    target = torch.ones(len(lengths), width, dtype=torch.long)
    generator = torch.Generator().manual_seed(seed)
    for row, length in enumerate(lengths):
        tokens[row, length] = 2
        target[row, :length] = 4 + torch.randint(len(tags), (length,), generator=generator)
    counts = torch.tensor(lengths)
    return {
        "net_input": {"src_tokens": tokens, "src_lengths": counts + 1},
        "target": target,
        "ntokens": sum(lengths),
        "nsentences": len(lengths),
    }


def _phrase(rng, bmes):
    """Tokens and tags: one to three names, whose kind only the word in front of them tells."""
    kind, words = rng.choice((("PER", ("mr", "mrs")), ("LOC", ("in", "near"))))
    size = rng.choice((1, 1, 2, 3))
    tags = ["B", *"I" * (size - 1)]
    if bmes:
        tags = ["S"] if size == 1 else ["B", *"M" * (size - 2), "E"]
    return (
        [rng.choice(words), *rng.choices(_PLACES, k=size)],
        ["O", *(f"{tag}-{kind}" for tag in tags)],
    )


def write_tagged(directory, sizes, bmes=False, seed=1):
    """Write ``{split}.txt``, so many texts of one to four names."""
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        lines = []
        for _ in range(size):
            phrases = [_phrase(rng, bmes) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
            pairs = (pair for tokens, tags in phrases for pair in zip(tokens, tags, strict=True))
            lines += [*(" ".join(pair) for pair in pairs), ""]
        (directory / f"{split}.txt").write_text("\n".join(lines) + "\n")
