"""The grammar of norm plans: each form against the places it names, and every refusal."""

import pytest

from rbn_fairseq.norms import NormPlan, parse_norms

KNOWN = ("batch", "groupscale", "layer", "power")
SITES = ("self", "cross", "ffn")


def places(text, layers=4):
    """Text of the norms at every place: one string of sites per layer."""
    plan = NormPlan.parse(text, "--norm-encoder").check(layers, SITES, KNOWN)
    return [["+".join(plan.norms(layer, site)) for site in SITES] for layer in range(layers)]


B, L = "batch", "layer"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch", [[B, B, B]] * 4),
        ("batch@2:layer", [[L, L, L], [L, L, L], [B, B, B], [L, L, L]]),
        ("batch@0-1:layer", [[B, B, B], [B, B, B], [L, L, L], [L, L, L]]),
        ("batch@1-1:layer", [[L, L, L], [B, B, B], [L, L, L], [L, L, L]]),
        ("batch@3.ffn:layer", [[L, L, L], [L, L, L], [L, L, L], [L, L, B]]),
        ("batch@2-3.cross:layer", [[L, L, L], [L, L, L], [L, B, L], [L, B, L]]),
        ("batch@self:layer", [[B, L, L]] * 4),
        ("layer@0-2:batch@3", [[L, L, L]] * 3 + [[B, B, B]]),
        ("groupscale+power", [["groupscale+power"] * 3] * 4),
        ("power+groupscale+layer@0:layer", [["power+groupscale+layer"] * 3] + [[L] * 3] * 3),
    ],
)
def test_forms(text, expected):
    assert places(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layer@0:batch@0-1:layer", [[L, L, L], [B, B, B], [L, L, L], [L, L, L]]),
        ("layer@1.self:batch@1:layer@self:batch", [[L, B, B], [L, B, B], [L, B, B], [L, B, B]]),
    ],
)
def test_first_match_wins(text, expected):
    assert places(text) == expected


@pytest.mark.parametrize("text", ["batch:layer@0", "batch@1:batch:layer", "batch:layer:power"])
def test_rules_that_never_apply(text):
    with pytest.raises(ValueError, match="--norm-encoder: .*`batch` is for all.*`layer(@0)?` beh"):
        places(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "batch@", "batch:", ":batch", "batch::layer", "batch@0-", "batch@-1", "batch@0-1-2",
        "batch@x.y.z", "batch@0.", "batch@.ffn", "batch@ffn.0", "batch@self-ffn", "+batch",
        "batch+", "batch++layer", "batch@0+layer", "batch@0,layer", " batch", "batch@0 :layer",
        "batch@0@1", "batch@1.5", "Batch", "batch\n",
    ],
)  # fmt: skip
def test_malformed_plans_show_the_grammar(text):
    with pytest.raises(ValueError, match=r"(?s)^--norm-encoder: cannot read .* A plan is `norm`"):
        places(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bach", "unknown norm `bach`. Did you mean `batch`? Known: batch, groupscale, layer"),
        ("layer@0:batch+powr", "unknown norm `powr`. Did you mean `power`?"),
        ("bn@0:layer", "unknown norm `bn`. Did you mean `batch`?"),
        ("zzzz", "unknown norm `zzzz`. Known: batch, groupscale, layer, power"),
        ("groups", "unknown norm `groups`. Known"),  # `groupscale` is another norm, no typing error
        ("batch@4:layer", "`batch@4:layer` names layer 4, but there are 4 layers: 0 to 3"),
        ("batch@2-9:layer", "names layer 9"),
        ("batch@3-1:layer", "the range `3-1` in `batch@3-1:layer` runs backwards"),
        ("batch@attn:layer", "no site `attn`"),
        ("batch@0.attn:layer", "the sites are self, cross, ffn"),
        ("batch@0-2", "gives no norm to layer 3, site `self`"),
        ("batch@self:layer@ffn", "gives no norm to layer 0, site `cross`"),
    ],
)
def test_refusals_name_option_and_value(text, message):
    with pytest.raises(ValueError, match="^--norm-encoder: ") as error:
        places(text)
    assert message in str(error.value)


def test_a_layers_missing_site_is_unknown():
    with pytest.raises(ValueError, match="no site `cross`.*the sites are self, ffn"):
        NormPlan.parse("batch@cross:layer", "--norm-encoder").check(2, ("self", "ffn"), KNOWN)


NAMED = ("qk", "embedding")


def named(text):
    return NormPlan.parse(text, "--norm-encoder", NAMED).check(2, (*SITES, *NAMED), KNOWN)


@pytest.mark.parametrize(
    ("text", "embedding", "heads"),
    [
        ("batch", "", ["", ""]),
        ("batch@0:layer", "", ["", ""]),
        ("layer@embedding:batch", "layer", ["", ""]),
        ("batch:layer@embedding:power@1.qk", "layer", ["", "power"]),
        ("layer@qk:batch:power@qk", "", ["layer", "layer"]),
    ],
)
def test_some_sites_have_norms_by_name_alone(text, embedding, heads):
    plan = named(text)
    assert "+".join(plan.norms(None, "embedding")) == embedding
    assert ["+".join(plan.norms(layer, "qk")) for layer in range(2)] == heads
    everywhere = [plan.norms(layer, site) for layer in range(2) for site in SITES]
    assert set(everywhere) <= {("batch",), ("layer",)} and all(everywhere)


def test_where_no_name_is_needed_the_embedding_is_a_place_like_others():
    plan = NormPlan.parse("batch@0-1:layer").check(2, (*SITES, "embedding"), KNOWN)
    assert plan.norms(None, "embedding") == ("layer",)
    with pytest.raises(ValueError, match="gives no norm to site `embedding`"):
        NormPlan.parse("batch@0-1").check(2, (*SITES, "embedding"), KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer@0.embedding:batch", "the embedding is in no layer.*Write `layer@embedding`"),
        ("batch:layer@embedding:power@ffn", "`batch` is for all.*`power@ffn` behind it"),
        ("batch@qk:layer@embedding", "gives no norm to layer 0, site `self`"),
    ],
)
def test_refusals_around_named_sites(text, message):
    with pytest.raises(ValueError, match=f"^--norm-encoder: .*{message}"):
        named(text)


def test_parse_norms_reads_one_norm_and_compositions():
    assert parse_norms("batch", KNOWN, "--norm-x") == ("batch",)
    assert parse_norms("groupscale+power", KNOWN, "--norm-x") == ("groupscale", "power")


@pytest.mark.parametrize("text", ["", "batch+", "bach", "batch@0", "batch:layer"])
def test_parse_norms_refuses_what_is_no_norm(text):
    with pytest.raises(ValueError, match="^--norm-x: unknown norm .* Known: batch, groupscale"):
        parse_norms(text, KNOWN, "--norm-x")


@pytest.mark.parametrize(
    "text",
    [
        "batch", "batch@2:layer", "batch@0-1:layer", "batch@3.ffn:layer", "batch@2-3.cross:layer",
        "batch@self:layer", "groupscale+power@0:layer",
    ],
)  # fmt: skip
def test_what_is_written_is_what_was_read(text):
    assert str(NormPlan.parse(text)) == text
    assert str(NormPlan.parse("batch@1-1:layer")) == "batch@1:layer"


def test_a_place_that_no_rule_covers_has_no_norms():
    assert NormPlan.parse("batch@0").norms(1, "ffn") == ()
