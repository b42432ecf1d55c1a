"""Checks of single values: each accepts a value and returns it in its plain type, or says why not.

A check raises ValueError with words that follow the name of what was checked, such as "must be an
integer, at least 0"; who calls it knows whether an argument or a file is to blame.

Numbers may be numpy's, and a whole float is an integer, as in JSON that JavaScript has written;
True is none. Where several values may be given, a tuple, an array or a column of a table is as good
as a list.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set, Sized
from contextlib import contextmanager
from itertools import islice
from numbers import Integral, Real
from reprlib import Repr
from typing import Any

import numpy as np

from rml.errors import ArgumentError, RmlError

__all__ = [
    "Check",
    "biases",
    "boolean",
    "callers_objects",
    "checked",
    "functions",
    "integer",
    "iterated",
    "listed",
    "number",
    "one_of",
    "plain_text",
    "shown",
    "texts",
    "token_ids",
]

Check = Callable[[object], Any]

# Of what makes its entries when they are asked for, as a range does: six times the longest context
# that is known. Of what is in memory already, as a list, there may be any number.
_MOST_ENTRIES = 1 << 26

_SHORT = Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


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
        raise ArgumentError(f"{name}={shown(value)} {error}") from error.__cause__
    except (MemoryError, RmlError):
        raise
    except Exception as error:
        raise _unreadable(f"{name}={shown(value)}", error) from error


@contextmanager
def callers_objects(what: str) -> Iterator[None]:
    """Turn what methods of a caller's objects raise into `ArgumentError`.

    Numbers, texts and collections may be of classes of the caller's, whose `__float__`, `__eq__`,
    `__iter__` and so on fail; and they may contain themselves.

    Parameters
    ----------
    what : str
        What is read.
    """
    try:
        yield
    except (MemoryError, RmlError):
        raise
    except Exception as error:
        raise _unreadable(what, error) from error


def _unreadable(what: str, error: Exception) -> ArgumentError:
    return ArgumentError(f"{what} cannot be read: {type(error).__name__}: {error!s:.80}")


def shown(value: object) -> str:
    """Show a value in a message: on a short line, whatever it is.

    A value may be of millions of entries, contain itself, or have no representation: that of an
    integer of thousands of digits is refused by Python, and one of the caller's may raise.
    """
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception:  # noqa: BLE001 - of a method of the caller's object
        return f"<{type(value).__name__}>"


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

    Texts, mappings and sets are no lists, nor is what can be read once only, a whole table, or what
    has not as many entries as it says.

    Raises
    ------
    ArgumentError
        If a method of an object of the caller's raises.
    """
    if type(value) is list:
        return value
    if isinstance(value, list):
        return list.copy(value)  # not as a class of the caller's may have it
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | Set | type):
        return None
    with callers_objects(f"a {type(value).__name__}"):
        return _entries(value)


def iterated(value: object) -> list[Any] | None:
    """Entries as `listed` has them, also of a set, of what can be read once only, and keys."""
    if isinstance(value, Set | Mapping) or (
        isinstance(value, Iterable) and not isinstance(value, Sized)
    ):
        with callers_objects(f"a {type(value).__name__}"):
            found = list(islice(value, _MOST_ENTRIES + 1))
        return found if len(found) <= _MOST_ENTRIES else None
    return listed(value)


def _entries(value: Any) -> list[Any] | None:  # noqa: ANN401 - anything
    if hasattr(value, "tolist"):
        found = value.tolist()
        return found if isinstance(found, list) else None
    if hasattr(value, "__len__") and hasattr(value, "__iter__") and getattr(value, "ndim", 1) == 1:
        n = len(value)
        if n > _MOST_ENTRIES:
            return None
        found = list(islice(value, n + 1))
        return found if len(found) == n else None
    return None


def one_of(name: str, value: object, names: Collection[str]) -> Any:  # noqa: ANN401 - a literal
    """Return the one of `names` that the argument `name` is.

    Raises
    ------
    ArgumentError
        If it is none of them.
    """
    text = plain_text(value) if isinstance(value, str) else None
    if text is None or text not in names:
        raise ArgumentError(f"{name} is {shown(value)}, but must be one of {', '.join(names)}")
    return text


def plain_text(value: str) -> str:
    """Return a text of any class of texts as a plain one, whatever that class says of itself."""
    return str.__str__(value)


def functions(value: object) -> tuple[Callable[..., Any], ...]:
    """Accept a function or several."""
    values = listed(value) if isinstance(value, list | tuple) else [value]
    if values is None or not all(map(callable, values)):
        raise ValueError("must be a function or a list of functions")
    return tuple(values)


def texts(value: object) -> tuple[str, ...]:
    """Accept a text or several, none of them empty."""
    values = [value] if isinstance(value, str) else _several(value)
    if values is None:
        raise ValueError("must be a text or a list of texts")
    found = tuple(plain_text(text) for text in values if isinstance(text, str))
    if len(found) < len(values) or not all(found):
        raise ValueError("must hold texts only, none of them empty")
    return found


def token_ids(value: object) -> tuple[int, ...]:
    """Accept a token id or several."""
    values = _several(value)
    try:
        return tuple(map(integer(0), [value] if values is None else values))
    except ValueError:
        raise ValueError("must be token ids: integers, at least 0") from None


def _several(value: object) -> list[Any] | None:
    """Entries where their order does not matter."""
    return iterated(value) if isinstance(value, Set) else listed(value)


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
