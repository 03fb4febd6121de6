"""Which norm goes where: one string for a whole stack of layers."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

__all__ = ["NormPlan", "parse_norms"]

_RULE = re.compile(
    r"(?P<norms>[a-z_]+(?:\+[a-z_]+)*)"
    r"(?:@(?:(?P<first>\d+)(?:-(?P<last>\d+))?(?:\.(?P<site>[a-z]+))?|(?P<only_site>[a-z]+)))?"
)
_GRAMMAR = (
    "A plan is `norm`, `norm@layers`, `norm@layers.site` or `norm@site`, joined by `:` (the first "
    "match wins); `norm` may be a composition `a+b`, `layers` is a 0-based number or range. "
    "Example: `batch@0-3:batch@4.ffn:layer`"
)


def parse_norms(text: str, known: Collection[str], option: str) -> tuple[str, ...]:
    """Read ``norm`` or ``norm+norm``, a composition applied left to right.

    Raises:
        ValueError: for an unknown name; the message lists the known ones and the nearest.
    """
    names = tuple(text.split("+"))
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(
                f"{option}: unknown norm `{name}`.{hint} Known: {', '.join(sorted(known))}; norms "
                "of your own, with --user-dir."
            )
    return names


@dataclass(frozen=True)
class _Rule:
    text: str
    norms: tuple[str, ...]
    layers: range | None  # None = all
    site: str | None  # None = all

    def matches(self, layer: int, site: str) -> bool:
        return (self.layers is None or layer in self.layers) and self.site in (None, site)


class NormPlan:
    """The norms of a stack of layers, read from one string.

    Args:
        text: the plan, such as ``batch``, ``batch@0-3:layer``, ``batch@4.ffn:layer``.
        layers: number of layers in the stack.
        sites: names of the norms' places in a layer (``self``, ``cross``, ``ffn``).
        known: names of the known norms.
        option: the command-line option that the plan came from, for messages.

    Raises:
        ValueError: for a malformed rule, an unknown norm or site, a layer outside the stack, or
            a place that no rule covers, or a rule behind one for all places.
    """

    def __init__(
        self, text: str, layers: int, sites: Sequence[str], known: Collection[str], option: str
    ) -> None:
        rules = [_parse_rule(rule, text, layers, sites, known, option) for rule in text.split(":")]
        for one, behind in pairwise(rules):
            if one.layers is None and one.site is None:
                raise ValueError(
                    f"{option}: in the plan `{text}`, `{one.text}` is for all places, so that "
                    f"`{behind.text}` behind it never applies: the first match wins. Put the rule "
                    "for all places last."
                )
        self._norms: dict[tuple[int, str], tuple[str, ...]] = {}
        for layer in range(layers):
            for site in sites:
                rule = next((rule for rule in rules if rule.matches(layer, site)), None)
                if rule is None:
                    raise ValueError(
                        f"{option}: the plan `{text}` gives no norm to layer {layer}, site "
                        f"`{site}`. End it with a rule for all places, such as `:layer`."
                    )
                self._norms[layer, site] = rule.norms

    def norms(self, layer: int, site: str) -> tuple[str, ...]:
        """Return the names of the norms at a place, in the order of their application."""
        return self._norms[layer, site]


def _parse_rule(
    rule: str, plan: str, layers: int, sites: Sequence[str], known: Collection[str], option: str
) -> _Rule:
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ValueError(f"{option}: cannot read `{rule}` in the plan `{plan}`. {_GRAMMAR}.")
    site = match["site"] or match["only_site"]
    if site is not None and site not in sites:
        raise ValueError(
            f"{option}: no site `{site}` in the plan `{plan}`; the sites are {', '.join(sites)}."
        )
    covered = None
    if match["first"] is not None:
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise ValueError(f"{option}: the range `{first}-{last}` in `{plan}` runs backwards.")
        if last >= layers:
            raise ValueError(
                f"{option}: the plan `{plan}` names layer {last}, but there are {layers} layers: "
                f"0 to {layers - 1}."
            )
        covered = range(first, last + 1)
    return _Rule(rule, parse_norms(match["norms"], known, option), covered, site)
