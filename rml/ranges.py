"""Checks of single values: each accepts a value and returns it in its plain type, or says why not.

A check raises ValueError with words that follow the name of what was checked, such as "must be an
integer, at least 0"; who calls it knows whether an argument or a file is to blame.

Numbers may be numpy's, and a whole float is an integer, as in JSON that JavaScript has written;
True is none. Where several values may be given, a tuple, an array or a column of a table is as good
as a list.
"""

import math
from collections.abc import Callable, Mapping, Set
from numbers import Integral, Real
from typing import Any

import numpy as np

from rml.errors import ArgumentError

__all__ = [
    "Check",
    "biases",
    "boolean",
    "checked",
    "integer",
    "listed",
    "number",
    "texts",
    "token_ids",
]

Check = Callable[[object], Any]


def checked(name: str, value: object, check: Check) -> Any:  # noqa: ANN401 - as checked
    """Check the argument `name` of a call.

    Raises
    ------
    ArgumentError
        If the check refuses it.
    """
    try:
        return check(value)
    except ValueError as error:
        raise ArgumentError(f"{name}={value!r} {error}") from None


def number(low: float, high: float = math.inf, *, above: bool = False) -> Check:
    """Accept a finite number from `low` (with `above`: greater than `low`) to `high`."""
    lower = f"{'greater than' if above else 'at least'} {low:g}"
    upper = f" and at most {high:g}" if math.isfinite(high) else ""

    def check(value: object) -> float:
        try:
            result = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:  # an integer beyond float64
            result = math.nan
        enough = result > low if above else result >= low  # NaN is neither
        if isinstance(value, bool) or not enough or result > high or result == math.inf:
            raise ValueError(f"must be a finite number, {lower}{upper}")
        return result

    return check


def integer(low: int, high: int | None = None) -> Check:
    """Accept an integer from `low` to `high`."""
    limits = f"at least {low}" + ("" if high is None else f" and at most {high}")

    def check(value: object) -> int:
        result = _whole(value)
        if result is None or result < low or (high is not None and result > high):
            raise ValueError(f"must be an integer, {limits}")
        return result

    return check


def _whole(value: object) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral):
        return int(value)
    try:
        number = float(value)
    except OverflowError:  # a fraction beyond float64
        return None
    return int(number) if number.is_integer() else None


def boolean(value: object) -> bool:
    """Accept True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError("must be True or False")  # noqa: TRY004 - the contract of this module
    return bool(value)


def listed(value: object) -> list[Any] | None:
    """Entries of a list, a tuple, an array, a column of a table and the like; None of all else.

    Texts, mappings and sets are no lists, nor is what can be read once only, or a whole table.
    """
    if isinstance(value, list):
        return value
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | Set | type):
        return None
    if hasattr(value, "tolist"):
        found = value.tolist()
        return found if isinstance(found, list) else None
    if hasattr(value, "__len__") and hasattr(value, "__iter__") and getattr(value, "ndim", 1) == 1:
        return list(value)
    return None


def texts(value: object) -> tuple[str, ...]:
    """Accept a text or several, none of them empty."""
    values = [value] if isinstance(value, str) else _several(value)
    if values is None:
        raise ValueError("must be a text or a list of texts")
    if not all(isinstance(text, str) and text for text in values):
        raise ValueError("must hold texts only, none of them empty")
    return tuple(map(str, values))


def token_ids(value: object) -> tuple[int, ...]:
    """Accept a token id or several."""
    values = _several(value)
    try:
        return tuple(map(integer(0), [value] if values is None else values))
    except ValueError:
        raise ValueError("must be token ids: integers, at least 0") from None


def _several(value: object) -> list[Any] | None:
    """Entries where their order does not matter."""
    return list(value) if isinstance(value, Set) else listed(value)


def biases(value: object) -> Mapping[int, float]:
    """Accept a mapping of token ids to numbers; minus infinity or False bans a token.

    Ids may be decimal texts, since JSON has no integer keys.
    """
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of token ids to numbers")  # noqa: TRY004
    result = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() else key
        try:
            (index,) = token_ids(token)
            banned = bias == -math.inf or (isinstance(bias, bool | np.bool_) and not bias)
            result[index] = -math.inf if banned else number(-1e6, 1e6)(bias)
        except ValueError as error:
            raise ValueError(f"must map token ids to numbers; {key!r}: {error}") from None
    return result
