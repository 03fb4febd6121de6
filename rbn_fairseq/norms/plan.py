"""Norm plans: one string that places norms in a stack of layers."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Optional

__all__ = ["EMBEDDING", "NormPlace", "NormPlan", "NormRule", "parse_norms"]

#: The site that is in no layer: the norm of the embedding, with its positions.
EMBEDDING = "embedding"

#: What papers and recipes call norms, where a plan has another name.
_SHORT = {"ln": "layer", "bn": "batch", "rbn": "batch", "pn": "power", "brn": "renorm"}

_RULE = re.compile(
    r"(?P<norms>[a-z_]+(?:\+[a-z_]+)*)"
    r"(?:@(?:(?P<first>\d+)(?:-(?P<last>\d+))?(?:\.(?P<site>[a-z]+))?|(?P<only_site>[a-z]+)))?"
)
_GRAMMAR = (
    "A plan is `norm`, `norm@layers`, `norm@layers.site` or `norm@site`, joined by `:` (the first "
    "match wins); `norm` may be a composition `a+b`, `layers` is a 0-based number or range. "
    "Example: `batch@0-3:batch@4.ffn:layer`"
)


@dataclass(frozen=True)
class NormPlace:
    """A place in a stack of layers: the sizes and settings that its norm depends on.

    Attributes:
        channels: number of channels C.
        heads: number of attention heads of the stack; 1 where there are none.
        sync: whether norms with batch statistics share them over all processes.
    """

    channels: int
    heads: int = 1
    sync: bool = False


def parse_norms(text: str, known: Collection[str], option: str) -> tuple[str, ...]:
    """Read ``norm`` or ``norm+norm``, a composition applied left to right.

    Raises:
        ValueError: for an unknown name; the message lists the known ones and the nearest.
    """
    names = tuple(text.split("+"))
    for name in names:
        if name not in known:
            near = get_close_matches(_SHORT.get(name, name), known, n=1, cutoff=0.8)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(
                f"{option}: unknown norm `{name}`.{hint} Known: {', '.join(sorted(known))}; norms "
                "of your own, with --user-dir."
            )
    return names


@dataclass(frozen=True)
class NormRule:
    """One rule of a plan.

    Attributes:
        norms: names, applied left to right.
        layers: the layers that it is for, a range of at least one; ``None`` = all.
        site: the place in a layer that it is for; ``None`` = all.
    """

    norms: tuple[str, ...]
    layers: Optional[range] = None
    site: Optional[str] = None

    def matches(self, layer: Optional[int], site: str) -> bool:
        """Tell whether the rule is for a place."""
        return (self.layers is None or layer in self.layers) and self.site in (None, site)

    def __str__(self) -> str:
        place = ""
        if self.layers is not None:
            first, last = self.layers[0], self.layers[-1]
            place = str(first) if first == last else f"{first}-{last}"
        if self.site is not None:
            place += f".{self.site}" if place else self.site
        return "+".join(self.norms) + (f"@{place}" if place else "")


@dataclass(frozen=True)
class NormPlan:
    """The norms of a stack of layers; ``str()`` writes what :meth:`parse` reads.

    Attributes:
        rules: the first one that matches a place is that of its norms.
        option: the command-line option that it came from, for messages.
        named: sites that have a norm only by a rule that names them.
    """

    rules: tuple[NormRule, ...]
    option: str = field(default="plan of norms", compare=False)
    named: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(
        cls, text: str, option: str = "plan of norms", named: Sequence[str] = ()
    ) -> "NormPlan":
        """Read a plan such as ``batch``, ``batch@0-3:layer``, ``batch@4.ffn:layer``.

        Args:
            text: the plan.
            option: the command-line option that it came from, for messages.
            named: sites that have a norm only by a rule that names them.

        Raises:
            ValueError: for a rule that is none.
        """
        rules = tuple(_parse_rule(rule, text, option) for rule in text.split(":"))
        return cls(rules, option, tuple(named))

    def __str__(self) -> str:
        return ":".join(map(str, self.rules))

    def norms(self, layer: Optional[int], *sites: str) -> tuple[str, ...]:
        """Return the names of the norms at a place, in the order of their application; or none.

        Args:
            layer: its number; ``None`` for the site ``embedding``.
            *sites: of the place; more than one where more than one has it.
        """
        for rule in self.rules:
            for site in sites:
                if rule.matches(layer, site) and (rule.site == site or site not in self.named):
                    return rule.norms
        return ()

    def check(self, layers: int, sites: Sequence[str], known: Collection[str]) -> "NormPlan":
        """Return the plan if it fits a stack.

        Args:
            layers: number of layers in the stack.
            sites: names of the norms' places (``self``, ``cross``, ``ffn``, ...).
            known: names of the known norms.

        Raises:
            ValueError: for an unknown norm or site, a layer outside the stack, a place that no
                rule covers, or a rule that one for all places in front of it hides.
        """
        option = self.option
        for rule in self.rules:
            if rule.site is not None and rule.site not in sites:
                raise ValueError(
                    f"{option}: no site `{rule.site}` in the plan `{self}`; the sites are "
                    f"{', '.join(sites)}."
                )
            if rule.layers is not None and rule.layers[-1] >= layers:
                raise ValueError(
                    f"{option}: the plan `{self}` names layer {rule.layers[-1]}, but there are "
                    f"{layers} layers: 0 to {layers - 1}."
                )
            if rule.layers is not None and rule.site == EMBEDDING:
                raise ValueError(
                    f"{option}: the embedding is in no layer, but the plan `{self}` names one in "
                    f"`{rule}`. Write `{'+'.join(rule.norms)}@{EMBEDDING}`."
                )
            parse_norms("+".join(rule.norms), known, option)
        self._check_order()
        for layer in (None, *range(layers)):
            for site in sites:
                inside = (layer is None) == (site == EMBEDDING)
                if inside and site not in self.named and not self.norms(layer, site):
                    where = "" if layer is None else f"layer {layer}, "
                    raise ValueError(
                        f"{option}: the plan `{self}` gives no norm to {where}site `{site}`. End "
                        "it with a rule for all places, such as `:layer`."
                    )
        return self

    def _check_order(self) -> None:
        general = None
        for rule in self.rules:
            if general is not None and rule.site not in self.named:
                raise ValueError(
                    f"{self.option}: in the plan `{self}`, `{general}` is for all places, so that "
                    f"`{rule}` behind it never applies: the first match wins. Put the rule for "
                    "all places last."
                )
            if rule.layers is None and rule.site is None:
                general = rule


def _parse_rule(rule: str, plan: str, option: str) -> NormRule:
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ValueError(f"{option}: cannot read `{rule}` in the plan `{plan}`. {_GRAMMAR}.")
    layers = None
    if match["first"] is not None:
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise ValueError(f"{option}: the range `{first}-{last}` in `{plan}` runs backwards.")
        layers = range(first, last + 1)
    norms = tuple(match["norms"].split("+"))
    return NormRule(norms, layers, match["site"] or match["only_site"])
