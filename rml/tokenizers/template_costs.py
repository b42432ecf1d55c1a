"""What a chat template may call, and what a call is charged before it is made.

Only what is named here can be reached: methods by the type of their object and their name, filters
by their name. What is not named raises. A charge is computed from the arguments: sizes of texts
that are made, comparisons that a search makes, elements of lists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Cycler, Joiner

from rml.files.limits import MAX_TEMPLATE_DATE
from rml.tokenizers.marked_text import is_written
from rml.tokenizers.template_guard import Allowance, bytes_of

# ruff: noqa: ANN401, SIM905  # words in a row read better than a list; a template's values are whatever messages hold

__all__ = [
    "ATTRIBUTES",
    "FILTERS",
    "charge_contains",
    "charge_equal",
    "charge_filter",
    "charge_method",
    "charge_operator",
    "charge_percent",
    "check_date_format",
]

Charge = Callable[[Allowance, Any, Sequence[Any]], None]

_STR_METHODS: Final = frozenset(
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum "
    "isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
    "isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex "
    "rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper "
    "zfill".split()
)
ATTRIBUTES: Final[Mapping[type, frozenset[str]]] = {
    str: _STR_METHODS,
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    LoopContext: frozenset(
        "changed cycle depth depth0 first index index0 last length nextitem previtem revindex "
        "revindex0".split()
    ),
    Cycler: frozenset({"current", "next", "reset"}),
    Joiner: frozenset(),
    Macro: frozenset({"arguments", "caller", "catch_kwargs", "catch_varargs", "name"}),
}
"""Names behind a dot, by the type of what stands before it."""

_WIDTHS: Final = "center expandtabs ljust rjust zfill".split()
_GROWING: Final = frozenset("capitalize casefold lower swapcase title upper".split())


# ---- operators and tests ----


def charge_operator(allowance: Allowance, operator: str, left: Any, right: Any) -> None:
    """Charge for an operator of arithmetic."""
    if operator == "*":
        for sized, count in ((left, right), (right, left)):
            if isinstance(count, int):
                if isinstance(sized, str | bytes):
                    size = len(sized) * (1 if sized.isascii() else 4)  # the marks grow together
                    size = size if is_written(sized) else bytes_of(sized)
                    allowance.room(size * max(count, 0))
                elif isinstance(sized, list | tuple):
                    allowance.room(8 * len(sized) * max(count, 0))
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            allowance.check_bits(left, abs(right))
    elif operator == "%" and isinstance(left, str | bytes):
        charge_percent(allowance, left, right)
    elif isinstance(left, str) or isinstance(right, str):
        escaped = 6 if hasattr(left, "__html__") or hasattr(right, "__html__") else 1
        allowance.room(escaped * sum(bytes_of(x) for x in (left, right) if isinstance(x, str)))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        allowance.room(8 * (len(left) + len(right)))


def charge_equal(allowance: Allowance, left: Any, right: Any, *, is_order: bool = False) -> None:
    """Charge for a comparison of two values."""
    if isinstance(left, str | int | float | None):
        if isinstance(left, str) and isinstance(right, str):
            allowance.work(min(len(left), len(right)) >> 4)
        return
    if isinstance(right, str | int | float | None):
        return
    if is_order or not hasattr(left, "__len__") or not hasattr(right, "__len__"):
        pass
    elif len(left) != len(right):
        return
    found = allowance.check_nesting(left), allowance.check_nesting(right)
    allowance.work(max(each.size >> 2 for each in found))


def charge_contains(allowance: Allowance, value: Any, within: Any) -> None:
    """Charge for a search of a value in a text, list or mapping."""
    if isinstance(within, str):
        if isinstance(value, str):
            _search(allowance, within, value)
    elif isinstance(within, Mapping | set | frozenset):
        allowance.check_hashed(value)
    elif isinstance(value, str | int | float | None):
        each = 1 + (len(value) >> 4) if isinstance(value, str) else 1
        allowance.work(4 * each * (len(within) if hasattr(within, "__len__") else 1))
    else:
        _walk_each(allowance, within, value)


def charge_percent(allowance: Allowance, pattern: str | bytes, values: Any) -> None:
    """Charge for a printf-style format."""
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    if text.count("%") > 1000:
        raise SecurityError("a format has more than 1000 fields")
    widths = 0
    printed = 0
    for field in text.split("%")[1:]:
        # A key may hold anything, so its digits are widths too, to the safe side.
        key, closed, rest = field.partition(")") if field.startswith("(") else ("", "", field)
        end = next((i for i, char in enumerate(rest) if char.isalpha()), len(rest))
        widths += allowance.check_format(rest[:end])
        printed += 1
        if key and not closed:
            widths += allowance.check_format(field)
    parts = values.values() if isinstance(values, Mapping) else values
    parts = parts if isinstance(values, Mapping | tuple | list) else [values]
    sizes = [_printed(allowance, part) for part in parts]
    most = max(sizes, default=0) if isinstance(values, Mapping) else 0
    whole = _printed(allowance, values) if isinstance(values, Mapping | list) else 0
    escaped = 6 if hasattr(pattern, "__html__") else 1
    allowance.room(
        bytes_of(text) + 4 * widths + escaped * (sum(sizes) + printed * max(most, whole))
    )


# ---- methods ----


def charge_method(allowance: Allowance, owner: Any, name: str, args: Sequence[Any]) -> None:
    """Charge for a method of a text, list, tuple or mapping."""
    if isinstance(owner, str):
        _charge_text(allowance, owner, name, args)
    elif name in ("get", "__getitem__"):
        for value in args[:1]:
            allowance.check_hashed(value)
    elif name in ("index", "count"):
        for value in args[:1]:
            charge_contains(allowance, value, owner)
    elif name == "changed":  # it compares with the arguments of the call before
        for value in args:
            allowance.work(allowance.check_nesting(value).size)
    elif name == "copy":
        allowance.room((200 if isinstance(owner, dict) else 8) * len(owner))


def _charge_text(allowance: Allowance, text: str, name: str, args: Sequence[Any]) -> None:
    size = bytes_of(text)
    texts = [value for value in args if isinstance(value, str)]
    allowance.step(1 + (size >> 10))
    if name in _WIDTHS:
        for value in args:
            allowance.check_width(value)
        if name == "expandtabs":
            width = next((value for value in args if isinstance(value, int)), 8)
            allowance.room(size + 4 * text.count("\t") * max(width, 0))
    elif name in _GROWING:
        allowance.room(3 * size)
    elif name in ("count", "find", "index", "partition", "removeprefix", "removesuffix"):
        for value in texts[:1]:
            _search(allowance, text, value)
        if name.startswith(("part", "remove")):
            allowance.room(size)
    elif name in ("startswith", "endswith"):
        for value in args[:1]:
            parts = value if isinstance(value, tuple) else (value,)
            allowance.work(sum(len(part) for part in parts if isinstance(part, str)) >> 2)
            allowance.step(len(parts))
    elif name in ("rfind", "rindex", "rpartition", "lstrip", "rstrip", "strip"):
        for value in texts[:1]:
            _search(allowance, text, value, backwards=True)
        allowance.room(size)
    elif name in ("split", "rsplit", "splitlines"):
        _charge_split(allowance, text, name, args, texts)
    elif name == "replace" and len(texts) > 1:
        _charge_replace(allowance, text, texts[0], texts[1])
    elif name == "join" and args:
        _charge_join(allowance, text, args[0])


def _search(allowance: Allowance, text: str, part: str, *, backwards: bool = False) -> None:
    """Charge for a search; forwards it is linear, but for short parts in short texts."""
    if backwards:
        allowance.work(len(text) * len(part))
    else:
        allowance.work(len(text) + min(len(text), 30_000) * min(len(part), 100))


def _charge_split(
    allowance: Allowance, text: str, name: str, args: Sequence[Any], texts: Sequence[str]
) -> None:
    limits = [v for v in args if type(v) is int and v >= 0] if name != "splitlines" else []
    if texts and texts[0]:
        _search(allowance, text, texts[0], backwards=name == "rsplit")
        count = text.count(texts[0]) if not limits else len(text) // len(texts[0])
    else:
        count = len(text) if name == "splitlines" else len(text) // 2
    allowance.room(bytes_of(text))
    pieces = 1 + min(count, *limits) if limits else 1 + count
    allowance.room(80 * pieces)
    if pieces > 1000:
        allowance.hold_elements(pieces)


def _charge_replace(allowance: Allowance, text: str, old: str, new: str) -> None:
    _search(allowance, text, old)
    found = text.count(old) if old else len(text) + 1
    escaped = 6 if hasattr(text, "__html__") else 1
    wide = 1 if text.isascii() and new.isascii() else 4
    allowance.room(wide * (len(text) + escaped * found * len(new)))


def _charge_join(allowance: Allowance, between: str, parts: Any) -> None:
    if isinstance(parts, str):
        allowance.room(80 * len(parts) + (bytes_of(between) + 4) * len(parts))
    elif hasattr(parts, "__len__"):
        allowance.step(len(parts))
        escaped = 6 if hasattr(between, "__html__") else 1
        inner = sum(bytes_of(part) for part in parts if isinstance(part, str))
        allowance.room((8 + bytes_of(between)) * len(parts) + escaped * inner)


def _walk_each(allowance: Allowance, values: Any, other: Any) -> None:
    """Charge for a comparison of each of some values with another one."""
    found = allowance.check_nesting(values)
    wanted = allowance.check_nesting(other)
    count = len(values) if hasattr(values, "__len__") else 1
    allowance.work(found.size + count * wanted.size)


def _printed(allowance: Allowance, value: Any) -> int:
    """Upper bound of the bytes of ``str(value)``."""
    if isinstance(value, str):
        return bytes_of(value)
    if isinstance(value, int | float) or value is None:
        return 1300
    found = allowance.check_nesting(value)
    return 10 * found.size + 24 * found.nodes


# ---- filters ----


def charge_filter(allowance: Allowance, name: str, value: Any, args: Sequence[Any]) -> None:
    """Charge for a filter, whose value is no iterator any more."""
    allowance.step(2)
    charge = FILTERS[name]
    if charge is not None:
        charge(allowance, value, args)


def _as_text(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:  # noqa: ARG001
    allowance.room(3 * _printed(allowance, value))


def _escaping(factor: int) -> Charge:
    def charge(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:  # noqa: ARG001
        allowance.room(factor * _printed(allowance, value))

    return charge


def _method(name: str) -> Charge:
    """Charge as the method of text does that the filter calls."""

    def charge(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
        allowance.check_text(value)
        _charge_text(allowance, str(value), name, args)

    return charge


def _elements(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    """Charge for a new list of the elements."""
    for size in args:
        allowance.check_width(size)
    if isinstance(value, str | Mapping):
        allowance.hold_elements(len(value))
    elif hasattr(value, "__len__"):
        allowance.room(8 * len(value))
        allowance.step(len(value))
        if isinstance(value, range):
            allowance.hold(32 * len(value))
    for count in args:  # columns are made, full or not
        if type(count) is int and count > 0:
            allowance.hold_elements(count)


def _comparing(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    """Charge for a sort, or the search of the least or greatest."""
    _elements(allowance, value, args)
    found = allowance.check_nesting(list(value) if isinstance(value, str) else value)
    nodes = max(found.nodes, len(value) if hasattr(value, "__len__") else 1)
    # Equal beginnings are compared again and again, and lower case is made of each.
    allowance.work(nodes.bit_length() * (nodes + (found.size >> 2)))
    allowance.room(3 * found.size)


def _grouping(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    _comparing(allowance, value, args)
    allowance.hold_elements(2 * len(value) if hasattr(value, "__len__") else 1)


def _hashing(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    _comparing(allowance, value, args)
    if not isinstance(value, str | Mapping) and hasattr(value, "__len__"):
        for item in value:
            allowance.check_hashed(item)


def _batching(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    _elements(allowance, value, args)
    if hasattr(value, "__len__"):
        allowance.hold_elements(len(value))


def _joining(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    between = next((arg for arg in args if isinstance(arg, str)), "")
    found = allowance.check_nesting(value)
    count = len(value) if hasattr(value, "__len__") else 1
    marks = 0
    if isinstance(value, list | tuple):
        escaped = 6 if any(hasattr(part, "__html__") for part in (between, *value)) else 1
        marks = sum(escaped * bytes_of(part) for part in value if isinstance(part, str))
    elif isinstance(value, str):
        marks = 80 * len(value)
    allowance.room((bytes_of(between) + 8) * count + 4 * found.size + marks)
    allowance.step(4 * count)


def _summing(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:  # noqa: ARG001
    if isinstance(value, list | tuple):
        sizes = [len(part) for part in value if isinstance(part, list | tuple)]
        allowance.work(8 * len(value) * sum(sizes))
        allowance.room(8 * sum(sizes))
        allowance.step(len(value))


def _json(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    """Count indentation and separators at every value, once a level."""
    between = 4
    for option in args:
        allowance.check_width(option)
        if type(option) is int:
            between += option
        elif isinstance(option, str):
            between += bytes_of(option)
        elif isinstance(option, tuple | list):
            between += _printed(allowance, option)
    found = allowance.check_nesting(value)
    wide = 12 if True in args else 6  # \ud83d\ude00, \u0000
    if found.size * wide > 1 << 20:  # most texts hold nothing that is escaped
        wide = max(4, wide // 2)
    allowance.room(found.size * wide + found.nodes * found.depth * between)
    allowance.step(4 * found.nodes + (found.size >> 8))


def _indent(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    _sized(allowance, value, args)
    width = 4
    for size in args:
        if isinstance(size, str):
            width = bytes_of(size)
        elif type(size) is int:
            width = abs(size)
    lines = len(value) if isinstance(value, str) and width > 80 else str(value).count("\n")
    lines = max(lines, str(value).count("\n")) if isinstance(value, str) else lines
    allowance.room(_printed(allowance, value) + (lines + 2) * width)
    allowance.hold_elements(str(value).count("\n"))


def _sized(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    for size in args:
        allowance.check_width(size)
    allowance.check_text(value)
    allowance.room(2 * _printed(allowance, value))


def _words(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:  # noqa: ARG001
    allowance.check_text(value)
    size = len(str(value))
    allowance.room(40 * size + 3 * _printed(allowance, value))
    allowance.step(size >> 2)


def _number(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    for size in args:
        allowance.check_width(size)
    if isinstance(value, str | bytes):
        allowance.check_width(len(value))


def _format(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    allowance.check_text(value)
    charge_percent(allowance, str(value), tuple(args))


def _replace(allowance: Allowance, value: Any, args: Sequence[Any]) -> None:
    allowance.check_text(value)
    texts = [str(allowance.check_text(text)) for text in args[:2]]
    if len(texts) > 1:
        _charge_replace(allowance, str(value), *texts)


FILTERS: Final[Mapping[str, Charge | None]] = {
    **dict.fromkeys(("abs", "count", "d", "default", "first", "last", "length", "safe")),
    **dict.fromkeys(("capitalize", "lower", "string", "upper"), _as_text),
    **dict.fromkeys(("e", "escape", "forceescape"), _escaping(6)),
    "urlencode": _escaping(12),
    **dict.fromkeys(("title", "wordcount"), _words),
    **dict.fromkeys(("center", "truncate"), _sized),
    **dict.fromkeys(("float", "filesizeformat", "int", "round"), _number),
    **dict.fromkeys(
        "items list map random reject rejectattr reverse select selectattr".split(),
        _elements,
    ),
    **dict.fromkeys(("batch", "slice"), _batching),
    **dict.fromkeys(("dictsort", "max", "min", "sort"), _comparing),
    "groupby": _grouping,
    "unique": _hashing,
    "format": _format,
    "indent": _indent,
    "join": _joining,
    "replace": _replace,
    "sum": _summing,
    "tojson": _json,
    "trim": _method("strip"),
}
"""Filters that may be used, with what they are charged; Jinja's others are refused."""


# ---- dates ----


def check_date_format(form: Any) -> None:
    """Refuse a format of a date that makes much of little: ``%`` takes widths on some systems."""
    if not isinstance(form, str):
        return
    if len(form) > MAX_TEMPLATE_DATE:
        raise SecurityError(f"a format of a date has more than {MAX_TEMPLATE_DATE} characters")
    for field in form.replace("%%", "").split("%")[1:]:
        directive = field.lstrip("-_0^#")
        if not directive[:1].isalpha():
            raise SecurityError(f"%{field[:9]} is no field of a date")
