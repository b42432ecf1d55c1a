"""What the rendering of a chat template may cost: processor time, memory, and single calls.

A template comes with the model file, from a stranger. An `Allowance` is made for each rendering.

* Time: every body of a loop, branch or macro and every operation counts steps, roughly tenths of a
  microsecond, and after some thousands of them the clock of the thread is looked at. There are no
  signals, so this works in any thread.
* Memory: bytes are counted before they are made. What is joined into a long text is given back when
  that text dies (`LargeText`), because templates build prompts by ``ns.out = ns.out ~ ...``; all
  else counts for good.
* Single calls: nothing can stop one call into C, so its work is computed from the sizes of its
  arguments before it is made (`rml.tokenizers.template_costs`), and refused if it is too much.

What one call can still do, at the limits of `rml.files.limits`, measured on one core of a small
virtual machine: a search backwards of 2**27 comparisons 25 ms, forwards through 64 MB 230 ms;
making a text of 64 MB 40 ms, or lower case of 32 MB; sorting 10**5 texts 25 ms; a test of equality
of 2**17 shared values 1 ms; JSON of 2**18 values 16 ms; 800 000 pieces of a split 7 ms. So the
clock is late by a quarter of a second at most. A template can use its time twice, as
`content_forms` renders with stand-ins before: 3 s in all. Its memory peaked at 100 MB in trials
with hostile templates; 200 MB are to be reckoned with, as a result stands beside its parts for a
moment.

A child process with limits of its own was weighed for templates that come from files, and not
chosen. Measured on that machine: a spawned child that imports what is needed takes 0.6 s and 44 MB
to start, and a round trip 9 ms, where a short chat takes 0.1 ms to render. Windows and macOS can
only spawn, and a spawned child imports the main module again, so that ``rml.load`` would break
scripts without a main guard, notebooks and programs that embed Python; ``RLIMIT_AS`` is not there
on Windows and does nothing on macOS. And it would only bound what is bounded here already.
"""

import re
import sys
import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any, Final, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.utils import Cycler, Namespace

from rml.files.limits import (
    MAX_TEMPLATE_BITS,
    MAX_TEMPLATE_BYTES,
    MAX_TEMPLATE_CALLS,
    MAX_TEMPLATE_LEVELS,
    MAX_TEMPLATE_MILLISECONDS,
    MAX_TEMPLATE_SEARCH,
    MAX_TEMPLATE_VALUES,
    MAX_TEMPLATE_WIDTH,
)
from rml.tokenizers.marked_text import MarkedText

# ruff: noqa: ANN401  # a template's values are whatever messages hold

__all__ = ["Allowance", "LargeText", "Weight", "bytes_of"]

_SECONDS_EACH: Final = 2e-6  # for each character that goes in
_BYTES_EACH: Final = 16  # likewise
_STEPS: Final = 2000  # between two looks at the clock
_BYTES_A_STEP: Final = 12  # log2 of the bytes that are copied in a step
_SHORT: Final = 64  # texts up to this are covered by what holds them
_LARGE: Final = 1 << 12  # texts from this on are given back when they die

# What objects take, in bytes, rounded up.
_SLOT: Final = 8
_ELEMENT: Final = 80
_ENTRY: Final = 200
_SPAN: Final = 136
_MANY: Final = 1 << 60

_CONTAINERS: Final = (
    list, tuple, dict, set, frozenset, Namespace, LoopContext, Cycler,
    KeysView, ValuesView, ItemsView,
)  # fmt: skip
_WIDTHS: Final = re.compile(r"\*|\d+")


class LargeText(MarkedText):
    """A long text made by joining, whose bytes are given back when it dies."""

    __slots__ = ("_allowance", "_bytes")
    _allowance: "Allowance"
    _bytes: int

    def __del__(self) -> None:
        """Give the bytes back."""
        self._allowance.give_back(self._bytes)


class Weight(NamedTuple):
    """What a walk through a nested value meets: values, characters, levels."""

    nodes: int
    size: int
    depth: int


class Allowance:
    """What one rendering may still use.

    Every check raises `SecurityError` when the allowance is used up.

    Parameters
    ----------
    given : int
        How many characters go in.
    effort : float
        Multiple of the usual limits of time and memory.
    functions : collection of callable
        What the caller gave that may be called.
    """

    def __init__(self, given: int = 0, effort: float = 1, functions: tuple[Any, ...] = ()) -> None:
        self._seconds = effort * (MAX_TEMPLATE_MILLISECONDS / 1000 + _SECONDS_EACH * given)
        self._most = int(effort * (MAX_TEMPLATE_BYTES + _BYTES_EACH * given))
        self._effort = effort
        self._left = self._most
        self._steps = _STEPS
        self._depth = 0
        self._time_left = self._seconds
        self._deadline = 0.0
        self._functions = functions

    def resume(self) -> None:
        """Start the clock, or go on after `pause`."""
        self._deadline = time.thread_time() + self._time_left
        self._depth = 0

    def forget(self) -> None:
        """Count all memory as free: what the rendering before has made is gone."""
        self._left = self._most

    def pause(self) -> None:
        """Stop the clock."""
        self._time_left = self._deadline - time.thread_time()

    def step(self, cost: int = 1) -> None:
        """Count steps, and look at the clock now and then."""
        self._steps -= cost
        if self._steps < 0:
            self._steps = _STEPS
            if time.thread_time() > self._deadline:
                raise SecurityError(
                    f"it takes too much time, more than {self._seconds:.1f} s of the processor; "
                    f"{self._advice()}"
                )

    def room(self, size: int) -> None:
        """Refuse what would take more bytes than are left."""
        if size > self._left:
            raise SecurityError(
                f"it makes too much text, more than {self._most >> 20} MB; {self._advice()}"
            )

    def hold(self, size: int) -> None:
        """Count bytes that were made, or are about to be."""
        self.room(size)
        self._left -= size
        self.step(size >> _BYTES_A_STEP)

    def give_back(self, size: int) -> None:
        """Count bytes that are free again."""
        self._left = min(self._most, self._left + size)

    def hold_value(self, value: Any) -> Any:
        """Count the size of a result; return it."""
        if isinstance(value, str):
            if len(value) > _SHORT and not isinstance(value, LargeText):
                self.hold(bytes_of(value))
        elif isinstance(value, list | tuple):
            self.hold(_SLOT * len(value))
        elif isinstance(value, dict):
            self.hold(_ENTRY * len(value))
        elif isinstance(value, int):
            self.check_bits(value, 1)
        return value

    def kept(self, value: Any) -> Any:
        """Count the size of a result; return it, a long text as one that is given back."""
        if type(value) is MarkedText:
            return self.large(value)
        return self.hold_value(value)

    def made(self, count: int, value: Any) -> Any:
        """Count a list or mapping of some elements that was written out; return it."""
        self._left -= _ELEMENT * count
        if self._left < 0:
            self.room(0)
        return value

    def hold_elements(self, count: int) -> None:
        """Count elements of a list that are made with it."""
        self.hold(_ELEMENT * count)

    def large(self, text: MarkedText) -> MarkedText:
        """Count a text that was just joined, until it dies."""
        size = bytes_of(text)
        self.step(1 + (size >> _BYTES_A_STEP))
        if len(text) < _LARGE:
            if len(text) > _SHORT:
                self.hold(size)
            return text
        self.room(size)
        self._left -= size
        result = LargeText(text, text.spans)
        result._allowance, result._bytes = self, size  # noqa: SLF001
        return result

    def enter(self) -> None:
        """Count a call that may call further ones."""
        self._depth += 1
        if self._depth > MAX_TEMPLATE_CALLS:
            raise SecurityError(f"it calls more than {MAX_TEMPLATE_CALLS} levels deep")

    def leave(self) -> None:
        """Count the end of such a call."""
        self._depth -= 1

    def has_function(self, function: Any) -> bool:
        """Whether a function was given by the caller."""
        return any(function is known for known in self._functions)

    def work(self, comparisons: int) -> None:
        """Count what one call is about to compare."""
        if comparisons > MAX_TEMPLATE_SEARCH:
            raise SecurityError("it takes too much time: one call compares too much")
        self.step(comparisons >> 6)

    def check_text(self, value: Any) -> Any:
        """Refuse a value whose ``str`` would be too large; return it."""
        if not isinstance(value, str):
            self.step(2)
            if isinstance(value, _CONTAINERS):
                found = self.check_nesting(value)
                self.room(10 * found.size + 24 * found.nodes)  # a character can be \U0000abcd
        return value

    def check_nesting(self, value: Any) -> Weight:
        """Refuse a value that is small in memory but huge or deep to walk through."""
        if not isinstance(value, _CONTAINERS):
            return Weight(1, len(value) if isinstance(value, str) else 24, 1)
        found = self._weight(value)
        if found.nodes > MAX_TEMPLATE_VALUES or found.depth > MAX_TEMPLATE_LEVELS:
            raise SecurityError("it nests values into each other")
        return found

    def check_hashed(self, value: Any) -> Any:
        """Refuse a key that is costly to hash or to compare; return it."""
        if isinstance(value, tuple | frozenset):
            found = self.check_nesting(value)
            self.work(found.size)
        elif isinstance(value, int | float) and not -(2**53) <= value <= 2**53:
            # Numbers a multiple of 2**61 - 1 apart have the same hash.
            raise SecurityError("it looks for a number of too many digits")
        return value

    def check_width(self, value: Any) -> None:
        """Refuse a width, precision or count that is huge."""
        if isinstance(value, int) and abs(value) > MAX_TEMPLATE_WIDTH:
            raise SecurityError(f"it asks for a width of more than {MAX_TEMPLATE_WIDTH}")

    def check_format(self, spec: str) -> int:
        """Refuse field widths that are huge, or come from elsewhere; return their sum."""
        total = 0
        for number in _WIDTHS.findall(spec):
            if number == "*" or len(number) > 5 or int(number) > MAX_TEMPLATE_WIDTH:
                raise SecurityError(f"a format asks for the width {number[:9]}")
            total += int(number)
        return total

    def check_bits(self, value: int, factor: int) -> None:
        """Refuse a whole number that has, or will have, too many digits."""
        if value.bit_length() * factor > MAX_TEMPLATE_BITS:
            raise SecurityError("it computes a number of too many digits")

    def _weight(self, value: Any) -> Weight:
        """Measure a nested value.

        What is shared is counted each time it is met, but walked only once.
        """
        leaf = Weight(1, 24, 1)
        known: dict[int, Weight] = {}
        alive: list[list[Any]] = []  # so that no two values that are met have the same id
        stack: list[tuple[Any, list[Any] | None]] = [(value, None)]
        while stack:
            item, parts = stack.pop()
            if parts is not None:
                met = [known.get(id(part), leaf) for part in parts]
                known[id(item)] = Weight(
                    min(_MANY, 1 + sum(part.nodes for part in met)),
                    min(_MANY, 2 + sum(part.size + 4 for part in met)),
                    1 + max(part.depth for part in met),
                )
            elif id(item) in known:
                continue
            elif isinstance(item, str | bytes):
                known[id(item)] = Weight(1, len(item), 1)
            elif isinstance(item, _CONTAINERS):
                known[id(item)] = leaf  # a value inside itself counts once
                if _length(item) + len(stack) > MAX_TEMPLATE_VALUES:
                    raise SecurityError(f"a value of it has more than {MAX_TEMPLATE_VALUES} parts")
                if parts := _parts(item):
                    self.step(8 * len(parts))
                    alive.append(parts)
                    stack.append((item, parts))
                    stack += [(part, None) for part in parts]
            else:
                known[id(item)] = leaf
        return known[id(value)]

    def _advice(self) -> str:
        return (
            "the limits grow with the messages, and ChatTemplate(source, "
            f"effort={2 * self._effort:g}) allows twice as much"
        )


def bytes_of(text: str | bytes) -> int:
    """Upper bound of the bytes that a text holds, and its marks."""
    if isinstance(text, bytes):
        return len(text)
    size = len(text) if text.isascii() else min(4 * len(text), sys.getsizeof(text))
    return size + _SPAN * len(text.spans) if isinstance(text, MarkedText) else size


def _length(value: Any) -> int:
    return 8 if isinstance(value, LoopContext | Namespace | Cycler) else len(value)


def _parts(value: Any) -> list[Any]:
    """Values inside another one, and those that a filter reaches by the name of an attribute."""
    if isinstance(value, Namespace):
        value = vars(value)["_Namespace__attrs"]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, LoopContext):
        return [value.previtem, value.nextitem]
    if isinstance(value, Cycler):
        return list(value.items)
    return list(value)
