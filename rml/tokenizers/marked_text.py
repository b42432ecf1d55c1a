"""Text that remembers which of its characters a chat template wrote.

A control token in a prompt must come from the template, never from a message. So every literal of
a template is a `MarkedText` that is written throughout, text from variables is a plain `str`, and
joining, slicing and stripping carry the marks along. Any other operation returns a plain `str`,
which counts as content: where a mark is lost, it is lost to the safe side.
"""

from collections.abc import Iterable
from typing import Any, Self, SupportsIndex

# ruff: noqa: ANN401  # a template's values are whatever messages hold

__all__ = ["MarkedText", "NullText", "is_written", "join_marked"]

Spans = tuple[tuple[int, int], ...]


class MarkedText(str):
    """A str with the ranges that the template wrote.

    Attributes
    ----------
    spans : tuple of (start, end)
        Written ranges; they rise, do not touch and are not empty. Without an argument there are
        none, so that a conversion made elsewhere (``type(text)(other)``) yields content.
    """

    __slots__ = ("spans",)
    spans: Spans

    def __new__(cls, text: str = "", spans: Spans = ()) -> Self:
        """Make a text of which `spans` are written."""
        self = super().__new__(cls, text)
        self.spans = spans
        return self

    @classmethod
    def written(cls, text: str) -> Self:
        """Text that the template wrote from end to end."""
        return cls(text, ((0, len(text)),) if text else ())

    def __str__(self) -> str:
        return self  # str() of a subclass would otherwise make a plain copy

    def __add__(self, other: Any) -> Any:
        return join_marked((self, other)) if _is_text(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return join_marked((other, self)) if _is_text(other) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        if is_written(self):
            return MarkedText.written(super().__mul__(count))
        return join_marked([self] * max(0, count.__index__()))

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = super().__getitem__(key)
        if not isinstance(key, slice):
            start = range(len(self))[key.__index__()]
            return self._cut(text, start)
        start, _, step = key.indices(len(self))
        if step == 1:
            return self._cut(text, start)
        return MarkedText.written(text) if is_written(self) else text

    def plain(self) -> str:
        """Return the text without its marks."""
        return super().__str__()

    def strip(self, chars: str | None = None, /) -> str:
        """As `str.strip`, with marks."""
        kept = super().lstrip(chars)
        return self._cut(kept.rstrip(chars), len(self) - len(kept))

    def lstrip(self, chars: str | None = None, /) -> str:
        """As `str.lstrip`, with marks."""
        kept = super().lstrip(chars)
        return self._cut(kept, len(self) - len(kept))

    def rstrip(self, chars: str | None = None, /) -> str:
        """As `str.rstrip`, with marks."""
        return self._cut(super().rstrip(chars), 0)

    def join(self, parts: Iterable[str], /) -> str:
        """As `str.join`, with marks."""
        between: list[str] = []
        for part in parts:
            between += (self, part)
        return join_marked(between[1:])

    def _cut(self, text: str, start: int) -> "MarkedText":
        """`text` is what stands in this text from `start` on."""
        end = start + len(text)
        spans = tuple(
            (max(low, start) - start, min(high, end) - start)
            for low, high in self.spans
            if low < end and start < high
        )
        return MarkedText(text, spans)


class NullText(MarkedText):
    """The content of a message that has none (JSON null): tests as none, prints as nothing."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, NullText)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _is_text(value: object) -> bool:
    """Whether a value is text that joins without escaping, as Jinja's ``Markup`` does not."""
    return isinstance(value, str) and not hasattr(value, "__html__")


def join_marked(parts: Iterable[str]) -> MarkedText:
    """Join texts and their marks; a plain `str` has none."""
    parts = parts if isinstance(parts, list | tuple) else list(parts)
    spans: list[tuple[int, int]] = []
    length = 0
    for part in parts:
        if isinstance(part, MarkedText):
            if not length:  # nothing moves; templates append to one text again and again
                spans.extend(part.spans)
                length = len(part)
                continue
            for low, high in part.spans:
                start = low + length
                if spans and spans[-1][1] == start:
                    start = spans.pop()[0]
                spans.append((start, high + length))
        length += len(part)
    return MarkedText("".join(parts), tuple(spans))


def is_written(value: object) -> bool:
    """Whether a value is text that the template wrote from end to end."""
    if not isinstance(value, MarkedText):
        return False
    return value.spans == ((0, len(value)),) or (not value and not isinstance(value, NullText))
