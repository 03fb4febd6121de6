"""Norm plans: valid ones against an interpreter of their parts, all else refused in words."""

from hypothesis import given
from hypothesis import strategies as st

from rbn_fairseq.norms import NORMS, NormPlan

SITES = ("self", "cross", "ffn")
LAYERS = 6

NORM = st.lists(st.sampled_from(sorted(NORMS)), min_size=1, max_size=3)
LAYER = st.integers(0, LAYERS - 1)
RANGE = st.one_of(
    st.none(),
    st.tuples(LAYER, st.none()),
    st.tuples(LAYER, LAYER).map(lambda layers: (min(layers), max(layers))),
)
RULE = st.tuples(NORM, RANGE, st.one_of(st.none(), st.sampled_from(SITES)))


def written(norms, layers, site):
    place = "" if layers is None else "-".join(str(layer) for layer in layers if layer is not None)
    place += "." * bool(place and site) + (site or "")
    return "+".join(norms) + ("@" + place if place else "")


def norms_at(rules, layer, site):
    for norms, layers, place in rules:
        first, last = (0, LAYERS) if layers is None else (layers[0], layers[1])
        inside = first <= layer <= (first if last is None else last)
        if inside and place in (None, site):
            return tuple(norms)


def plan(text):
    return NormPlan.parse(text, "--norm-encoder").check(LAYERS, SITES, NORMS)


@given(st.lists(RULE, max_size=4), NORM)
def test_plans_mean_what_they_are_made_of(rules, rest):
    rules = [rule for rule in rules if rule[1:] != (None, None)] + [(rest, None, None)]
    read = plan(":".join(written(*rule) for rule in rules))
    for layer in range(LAYERS):
        for site in SITES:
            assert read.norms(layer, site) == norms_at(rules, layer, site)
    assert NormPlan.parse(str(read)) == read


def refuses_or_covers(text):
    try:
        read = plan(text)
    except ValueError as error:
        assert str(error).startswith("--norm-encoder: ")
        return
    for layer in range(LAYERS):
        for site in SITES:
            assert set(read.norms(layer, site)) <= set(NORMS)


@given(st.text())
def test_any_text(text):
    refuses_or_covers(text)


@given(st.text(alphabet="abtchlyer@:+-.0123456789٣² \n", max_size=30))
def test_texts_of_the_grammars_letters(text):
    refuses_or_covers(text)


@given(
    st.lists(RULE, min_size=1, max_size=3),
    st.integers(0, 99),
    st.text(alphabet="@:+-.059²٣ \nbatchsef", max_size=3),
    st.integers(0, 3),
)
def test_plans_with_an_error(rules, at, more, less):
    text = ":".join(written(*rule) for rule in rules)
    at = at % (len(text) + 1)
    refuses_or_covers(text[:at] + more + text[at + less :])
