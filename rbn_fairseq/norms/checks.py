"""What several norms demand of their options."""

import math
from typing import Any

__all__ = ["check_groups", "check_rules", "group_count", "positive"]


def check_rules(norm: str, options: Any, rules: dict[str, tuple[bool, str]]) -> None:
    """Refuse the first option whose rule does not hold.

    Args:
        norm: registered name.
        options: the norm's dataclass of options.
        rules: by name of an option, whether it holds and what it "must be".

    Raises:
        ValueError: naming the option, the rule, the value and the default.
    """
    for name, (holds, rule) in rules.items():
        if not holds:
            default = type(options).__dataclass_fields__[name].default
            raise ValueError(
                f"`{name}` (--norm-{norm}-{name.replace('_', '-')}) must be {rule}, but is "
                f"{getattr(options, name)}. The default is {default}."
            )


def positive(value: float) -> tuple[bool, str]:
    """Return the rule that a value is positive and finite."""
    return 0 < value < math.inf, "positive and finite"


def check_groups(norm: str, groups: int) -> None:
    """Refuse a negative number of groups.

    Raises:
        ValueError: naming the option, the rule, the value and the default.
    """
    if groups < 0:
        raise ValueError(
            f"`groups` (--norm-{norm}-groups) must be a positive number that divides the number "
            f"of channels, or 0 for the number of attention heads, but is {groups}. The default "
            "is 0."
        )


def group_count(norm: str, groups: int, channels: int, heads: int) -> int:
    """Return G, the number of groups of ``channels`` channels: ``groups``, or ``heads`` for 0.

    Raises:
        ValueError: if G does not divide C; it names both and the nearest numbers that do.
    """
    count = groups or heads
    if channels % count == 0:
        return count
    divisors = [divisor for divisor in range(1, channels + 1) if channels % divisor == 0]
    near = [max(d for d in divisors if d < count), *(d for d in divisors if d > count)][:2]
    origin = f"is {count}" if groups else f"is 0, the number of attention heads: {count}"
    raise ValueError(
        f"`groups` (--norm-{norm}-groups) must divide the number of channels, C = {channels}, but "
        f"{origin}. Nearest that do: {' and '.join(map(str, near))}."
    )
