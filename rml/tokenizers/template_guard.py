"""What a chat template may cost: processor time, and text made.

A template comes with the model file, from a stranger. Time is looked at in every step of every
loop and macro. Size is checked before an operation that can make much from little, and counted
after the others, so that neither one text nor their sum grows without bound. There are no signals,
so this works in any thread.
"""

import re
import threading
import time
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

# ruff: noqa: ANN401, SIM905  # words in a row read better than a list; a template's values are whatever messages hold

__all__ = ["Guard"]

_SECONDS: Final = 0.7  # processor time of the rendering thread; a long real chat takes 0.05
_SECONDS_EACH: Final = 1e-6  # and for each character that goes in
_CHARACTERS: Final = 1 << 26  # made in all by one rendering, beside 16 times what goes in
_LARGEST: Final = 1 << 25  # one text, or the elements of one list
_STEPS: Final = 256  # between two looks at the clock
_BITS: Final = 4096  # of a whole number
_WIDTH: Final = 10_000  # field widths, numbers of columns and the like
_NODES: Final = 1 << 20  # values met in a walk through a nested value
_DEPTH: Final = 200  # levels of a nested value

_NUMBER: Final = re.compile(r"\*|\d+")
_PERCENT: Final = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%]*)")

# Filters that compare, hash or add up what is in the value.
_WALKING: Final = frozenset("dictsort groupby join max min sort sum unique".split())
# Filters that turn any value into text.
_PRINTING: Final = frozenset(
    "capitalize center e escape forceescape format indent join lower pprint replace string "
    "striptags title tojson trim truncate upper urlencode urlize wordcount wordwrap xmlattr".split()
)
# Filters with a width or count among their arguments, or that repeat one.
_SIZED: Final = frozenset(
    "batch center indent round slice truncate urlize wordwrap xmlattr".split()
)
_SIZED_METHODS: Final = frozenset("center expandtabs ljust rjust to_bytes zfill".split())


class _Weight(NamedTuple):
    """What a walk through a nested value meets: values, characters, levels.

    `walked` counts what was looked at, in which shared values count once.
    """

    nodes: int
    size: int
    depth: int
    walked: int = 1


class Guard(threading.local):
    """Allowance of the rendering that runs in this thread.

    Every check raises `SecurityError` when the allowance is used up.
    """

    def __init__(self) -> None:
        self._steps = _STEPS
        self._deadline = float("inf")
        self._characters = _CHARACTERS

    @contextmanager
    def running(self, given: int) -> Iterator[None]:
        """Start an allowance; `given` is how many characters go in."""
        before = self._steps, self._deadline, self._characters
        self._steps = _STEPS
        self._deadline = time.thread_time() + _SECONDS + _SECONDS_EACH * given
        self._characters = _CHARACTERS + 16 * given
        try:
            yield
        finally:
            self._steps, self._deadline, self._characters = before

    def step(self, cost: int = 1) -> None:
        """Count steps, and look at the clock now and then."""
        self._steps -= cost
        if self._steps < 0:
            self._steps = _STEPS
            if time.thread_time() > self._deadline:
                raise SecurityError("it takes too much time")

    def spend(self, size: int) -> None:
        """Count characters or elements that were made, or are about to be."""
        self._characters -= size
        if size > _LARGEST or self._characters < 0:
            raise SecurityError("it makes too much text")
        self.step(1 + (size >> 12))

    def spend_value(self, value: Any) -> Any:
        """Count the size of a result; return it."""
        if isinstance(value, str | bytes):
            self.spend(len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(8 * len(value))
        elif isinstance(value, int):
            self._check_bits(value, 1)
        return value

    def check_text(self, value: Any) -> Any:
        """Refuse a value whose ``str`` would be too large; return it."""
        if not isinstance(value, str):
            self.spend(_text_size(value))
        return value

    def check_nesting(self, value: Any) -> Any:
        """Refuse a value that is small in memory but huge or deep to walk through; return it."""
        if isinstance(value, list | tuple | dict | Namespace):
            found = _weight(value)
            self.step(1 + found.walked // 8)
            if found.nodes > _NODES or found.depth > _DEPTH:
                raise SecurityError("it nests values into each other")
        return value

    def check_format(self, spec: str) -> None:
        """Refuse field widths that are huge, or come from elsewhere."""
        for number in _NUMBER.findall(spec):
            if number == "*" or len(number) > 5 or int(number) > _WIDTH:
                raise SecurityError(f"a format asks for the width {number[:9]}")

    def check_operator(self, operator: str, left: Any, right: Any) -> None:
        """Look at an operator before it is applied."""
        if operator == "*":
            for sized, count in ((left, right), (right, left)):
                if isinstance(sized, str | bytes | list | tuple) and isinstance(count, int):
                    self.spend(len(sized) * max(count, 0))
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                self._check_bits(left, max(right, 0))
        elif operator == "%" and isinstance(left, str | bytes):
            self._check_percent(left, right)
        elif isinstance(left, str | bytes | list | tuple):
            self.spend(len(left))

    def check_call(self, function: Any, owner: Any, args: Sequence[Any]) -> None:
        """Look at a call before it is made; `owner` is what a method is bound to."""
        if function is dict or isinstance(owner, str | bytes | int | float | list | tuple | dict):
            for value in args:
                self.check_nesting(value)
        if not isinstance(owner, str | bytes | int):
            return
        name = function.__name__
        if name in _SIZED_METHODS:
            self._check_widths(args)
        if isinstance(owner, int) or not args:
            return
        if name == "replace" and len(args) > 1:
            self._check_replace(owner, args[0], args[1])
        elif name == "expandtabs" and isinstance(args[0], int):
            self.spend(len(owner) * (1 + abs(args[0])))
        elif name == "translate":
            self.spend(len(owner) * 16 * (1 + _text_size(args[0])))
        elif name == "join" and isinstance(args[0], list | tuple | dict):
            self.spend(len(owner) * len(args[0]) + sum(map(_text_size, args[0])))

    def check_filter(self, name: str, value: Any, rest: Sequence[Any]) -> Any:
        """Look at a filter before it is applied; return the value to apply it to."""
        self.step()
        if name in _WALKING and not isinstance(value, str | Mapping) and _is_iterable(value):
            value = self.check_nesting(list(value))
        if name in _PRINTING:
            self.check_text(value)
        if name in _SIZED:
            self._check_widths(rest)
            texts = sum(len(text) for text in rest if isinstance(text, str))
            self.spend((_text_size(value) + 1) * (1 + texts))
        if name == "indent":
            width = next((size for size in rest if type(size) is int), 4)
            self.spend((str(value).count("\n") + 1) * width)
        elif name == "tojson":
            self._check_json(value, rest)
        elif name == "replace" and len(rest) > 1:
            self._check_replace(str(value), str(rest[0]), str(rest[1]))
        elif name == "format":
            self._check_percent(str(value), rest)
        elif name in ("float", "int") and isinstance(value, str | bytes):
            self._check_widths([len(value)])
        elif name == "join" and rest:
            self.spend(len(value) * _text_size(rest[0]))
        elif name == "sum":
            self.spend(len(value) * sum(len(x) for x in value if isinstance(x, list | tuple)))
        return value

    def _check_bits(self, value: int, factor: int) -> None:
        if value.bit_length() * factor > _BITS:
            raise SecurityError("it computes a number of too many digits")

    def _check_widths(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > _WIDTH:
                raise SecurityError(f"it asks for a width of more than {_WIDTH}")

    def _check_json(self, value: Any, rest: Iterable[Any]) -> None:
        """Count indentation and separators at every value, once a level."""
        between = 4
        for option in rest:
            self._check_widths([option])
            between += option if type(option) is int else _text_size(option)
        found = _weight(value)
        self.spend(found.size + found.nodes * found.depth * between)

    def _check_replace(self, text: Any, old: Any, new: Any) -> None:
        if all(isinstance(part, str | bytes) for part in (text, old, new)):
            self.spend(len(text) + (len(text) // max(1, len(old)) + 1) * len(new))

    def _check_percent(self, pattern: str | bytes, values: Any) -> None:
        text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
        widths = _PERCENT.findall(text)
        for width in widths:
            self.check_format(width)
        self.spend(len(text) + len(widths) * _text_size(values))
        self.spend(sum(int(n) for width in widths for n in _NUMBER.findall(width)))


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable)


def _text_size(value: Any) -> int:
    """Upper bound of the length of ``str(value)``, near enough to spend."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int | float) or value is None:
        return 24
    if isinstance(value, bytes):
        return 4 * len(value)
    found = _weight(value)
    return found.size + 24 * found.nodes


def _weight(value: Any) -> _Weight:
    """Measure a nested value.

    What is shared is counted each time it is met, but walked only once.
    """
    leaf = _Weight(1, 24, 1)
    known: dict[int, _Weight] = {}
    alive: list[list[Any]] = []  # so that no two values that are met have the same id
    stack: list[tuple[Any, list[Any] | None]] = [(value, None)]
    while stack:
        item, parts = stack.pop()
        if parts is not None:
            met = [known.get(id(part), leaf) for part in parts]
            known[id(item)] = _Weight(
                1 + sum(part.nodes for part in met),
                2 + sum(part.size + 4 for part in met),
                1 + max(part.depth for part in met),
            )
        elif id(item) in known:
            continue
        elif isinstance(item, str | bytes):
            known[id(item)] = _Weight(1, len(item), 1)
        elif parts := _parts(item):
            known[id(item)] = leaf  # a value inside itself counts once
            alive.append(parts)
            stack.append((item, parts))
            stack += [(part, None) for part in parts]
        else:
            known[id(item)] = leaf
    return known[id(value)]._replace(walked=len(known))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Namespace):
        value = vars(value)["_Namespace__attrs"]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return list(value)
    return []
