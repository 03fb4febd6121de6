"""Parameters, of norms above all: fields of dataclasses that declare meaning, default and range."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Optional

__all__ = ["OF_NEW", "NormOptions", "check_values", "option"]

OF_NEW = "weight of the new value in the running statistics"  # what a momentum is
_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


def option(
    default: Any,
    text: str,
    *,
    range: Optional[str] = None,
    at_least: Optional[str] = None,
    choices: Optional[tuple[str, ...]] = None,
) -> Any:
    """Declare a parameter: a field of a dataclass, such as a norm's :class:`NormOptions`.

    Args:
        default: its value where none is given.
        text: what it means; the flag's help, which the range is added to.
        range: the numbers that it can be, an interval such as ``(0, 1]`` or ``[1, inf)``.
        at_least: name of a parameter that it must not be smaller than.
        choices: the texts that it can be.
    """
    if range is not None:
        text += f"; {_in_words(range)}"
    if at_least is not None:
        text += f"; >= {at_least}"
    metadata = {"help": text, "range": range, "at_least": at_least, "choices": choices}
    given = {name: value for name, value in metadata.items() if value is not None}
    return dataclasses.field(default=default, metadata=given)


def _limits(range: str) -> tuple[str, float, float, str]:
    match = _INTERVAL.fullmatch(range)
    if match is None:
        raise ValueError(f"option: `{range}` is no interval such as `(0, 1]` or `[1, inf)`.")
    return match[1], float(match[2]), float(match[3]), match[4]


def _in_words(range: str) -> str:
    left, low, high, _ = _limits(range)
    if high < math.inf:
        return f"in {range}"
    return f">= {low:g}" if left == "[" else "positive" if low == 0 else f"> {low:g}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, Real) else math.nan


def _broken_range(range: str, value: Any) -> Optional[str]:
    """Return what a value outside a range must be, such as ``>= 1 and finite``; ``None`` inside."""
    left, low, high, right = _limits(range)
    number = _number(value)
    above = low <= number if left == "[" else low < number
    if above and (number <= high if right == "]" else number < high):
        return None
    return _in_words(range) + (" and finite" if range.endswith("inf)") else "")


def _broken_rule(values: Any, value: Any, declared: Mapping[str, Any]) -> Optional[str]:
    if "range" in declared and (rule := _broken_range(declared["range"], value)):
        return rule
    if "at_least" in declared and not _number(value) >= (
        least := getattr(values, declared["at_least"])
    ):
        return f"at least `{declared['at_least']}`, {least} (raise it or lower that)"
    if "choices" in declared and value not in declared["choices"]:
        return " or ".join(f"`{choice}`" for choice in declared["choices"])
    return None


def check_values(kind: type[Any], values: Any, prefix: str = "--") -> None:
    """Refuse values that a dataclass's :func:`option` fields do not allow (``ValueError``)."""
    for field in dataclasses.fields(kind):
        value = getattr(values, field.name)
        rule = _broken_rule(values, value, field.metadata)
        if rule is not None:
            name = prefix + field.name.replace("_", "-")
            raise ValueError(
                f"{name} must be {rule}, but is {value}. The default is {field.default}."
            )


@dataclass(frozen=True)
class NormOptions:
    """Base of the parameters of a norm; a subclass gives the norm's name as ``norm=``.

    Every field is an :func:`option`. The base itself is for norms without parameters.

    Raises:
        ValueError: if a value is outside its range.
    """

    norm: ClassVar[str] = ""

    def __init_subclass__(cls, norm: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.norm = norm or cls.norm

    def __post_init__(self) -> None:
        check_values(type(self), self, self.flag(""))

    @classmethod
    def flag(cls, name: str) -> str:
        """Return the command-line option of a parameter."""
        return f"--norm-{cls.norm}-{name.replace('_', '-')}"
