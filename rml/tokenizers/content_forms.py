"""Which form of content a chat template reads: text, or a list of parts.

Some templates read one form only, some another one for another role, and what they do with the
form they do not know is seldom an error: they write Python's notation of a list, or nothing. So the
template is asked: the conversation is rendered with stand-ins for its texts, and whether a stand-in
comes out, as text and not inside a part that was printed whole, tells what is read.

A content stays in the form in which it was given if that is read; otherwise it becomes text (parts
joined without anything between) or one part, whichever is read. Text is the form for templates that
read neither.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from jinja2.exceptions import SecurityError

from rml.errors import TemplateError
from rml.tokenizers.chat_messages import is_text_part, text_of
from rml.tokenizers.marked_text import NullText
from rml.tokenizers.template_names import TemplateNames

# ruff: noqa: ANN401  # a template's values are whatever messages hold

__all__ = ["readable"]

Message = dict[str, Any]
Render = Callable[[Sequence[Message]], str]

_GIVEN, _TEXT, _PARTS = "given", "text", "parts"
_PRINTED, _ABSENT, _IN_PART, _READ = range(4)  # what became of a content, the best last

# A stand-in is two characters of the private planes: nothing else writes them, no filter changes
# them, and Python's notation escapes them.
_FIRST, _SECOND, _PLANE = 0x100000, 0xF0000, 0xFFF0
_STAND_IN: Final = re.compile("[\U00100000-\U0010ffff][\U000f0000-\U000fffff]")
# An entry of a part that no template asks for: it comes out if the part is printed whole.
_ENTRY: Final = "rml"
_PRINTED_PART: Final = re.compile(r"rml-message-(\d+)-")

# A template that reads parts mentions one of these; without them a content is text to it.
_INTO_PARTS: Final = frozenset({"text", "type", "items", "values"})

_MOST_ROLES: Final = 4  # for which every mixture of forms is tried


class _Place(NamedTuple):
    """A content of which the form is to be chosen, with stand-ins for its texts."""

    message: int  # its index
    role: str
    content: Any
    stand_ins: tuple[str, ...]
    is_fixed: bool  # has parts that are not text


def readable(messages: Sequence[Message], render: Render, names: TemplateNames) -> list[Message]:
    """Messages with each content in a form that a template reads.

    Parameters
    ----------
    messages : sequence of dict
        As `prepared` returns them.
    render : callable
        Renders messages; it may raise anything, and `SecurityError` if it has taken too long.
    names : TemplateNames
        What the template mentions.

    Raises
    ------
    TemplateError
        A content with parts that are not text is not read.
    """
    places = list(_places(messages))
    if not any(place.is_fixed for place in places) and (
        not places or not _INTO_PARTS & (names.words | names.attributes)
    ):
        return _formed(messages, dict.fromkeys((place.message for place in places), _TEXT))
    return _formed(messages, _Trials(messages, places, render).best())


def _places(messages: Sequence[Message]) -> Iterator[_Place]:
    count = 0
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, NullText) or not isinstance(content, str | list):
            continue
        texts = [content] if isinstance(content, str) else [p for p in content if is_text_part(p)]
        stand_ins = tuple(_stand_in(count + i) for i in range(len(texts)))
        count += len(texts)
        yield _Place(
            index,
            str(message["role"]),
            _with_stand_ins(content, iter(stand_ins), index),
            stand_ins,
            text_of(content) is None,
        )


def _stand_in(number: int) -> str:
    return chr(_FIRST + number % _PLANE) + chr(_SECOND + number % _PLANE)


def _entry(index: int) -> dict[str, str]:
    return {_ENTRY: f"rml-message-{index}-"}


def _with_stand_ins(content: Any, stand_ins: Iterator[str], index: int) -> Any:
    if isinstance(content, str):
        return next(stand_ins)
    entry = _entry(index)
    return [
        {**part, "text": next(stand_ins), **entry} if is_text_part(part) else {**part, **entry}
        for part in content
    ]


def _in_form(content: Any, form: str, entry: Mapping[str, str] | None = None) -> Any:
    text = text_of(content)
    if form == _GIVEN or text is None:
        return content
    return text if form == _TEXT else [{"type": "text", "text": text, **(entry or {})}]


def _formed(messages: Sequence[Message], forms: Mapping[int, str]) -> list[Message]:
    """Give contents their forms; messages that are not named stay."""
    return [
        message | {"content": _in_form(message["content"], forms[i])} if i in forms else message
        for i, message in enumerate(messages)
    ]


class _Trials:
    """Renderings of a conversation with stand-ins, and what they showed."""

    def __init__(
        self, messages: Sequence[Message], places: Sequence[_Place], render: Render
    ) -> None:
        self._messages = messages
        self._places = places
        self._render = render
        self._seen: dict[tuple[str, ...], list[int] | None] = {}
        self._is_over = False

    def best(self) -> dict[int, str]:
        """Form of each content, by the index of its message."""
        n = len(self._places)
        tried = []
        for form in (_GIVEN, _TEXT, _PARTS):
            seen = self._try([form] * n)
            if seen is not None and seen.count(_READ) == n:
                return self._by_index([form] * n)
            tried.append((form, seen))
        self._refuse_unread()
        if any(seen is None for _, seen in tried):
            return self._by_index(self._best_mixture())
        # No form disturbs the template, so each content can have its own.
        seen_in = {form: seen for form, seen in tried if seen is not None}
        return self._by_index([_best_form(seen_in, i) for i in range(n)])

    def _best_mixture(self) -> list[str]:
        """Forms for a template that fails on a form: for some roles it may read only the other."""
        n = len(self._places)
        best, most = [_TEXT] * n, (0, 0)
        for forms in self._mixtures():
            seen = self._try(forms)
            if seen is not None:
                found = seen.count(_READ), seen.count(_IN_PART)
                best, most = (forms, found) if found > most else (best, most)
            if most[0] == n:
                break
        return best

    def _mixtures(self) -> Iterator[list[str]]:
        """All contents in one form; then some roles as text, others as parts."""
        n = len(self._places)
        yield from ([form] * n for form in (_GIVEN, _TEXT, _PARTS))
        # Where the template takes text, what it reads stays text.
        as_text = self._try([_TEXT] * n) or [_ABSENT] * n
        unread = zip(self._places, as_text, strict=True)
        roles = list(dict.fromkeys(place.role for place, state in unread if state != _READ))
        for forms in product((_TEXT, _PARTS), repeat=min(len(roles), _MOST_ROLES)):
            by_role = dict(zip(roles, forms, strict=False))
            yield [by_role.get(place.role, _TEXT) for place in self._places]

    def _refuse_unread(self) -> None:
        """Refuse contents that are not all text where the template does not read their parts."""
        if not any(place.is_fixed for place in self._places):
            return
        n = len(self._places)
        given = self._try([_GIVEN] * n) or [_ABSENT] * n
        alone = self._render_and_look(
            ["".join(p.stand_ins) if p.is_fixed else p.content for p in self._places]
        )
        as_text = alone or [_ABSENT] * n
        for place, state, state_of_text in zip(self._places, given, as_text, strict=True):
            is_lost = bool(place.stand_ins) and state != _READ and state_of_text == _READ
            if place.is_fixed and (state == _PRINTED or is_lost):
                kinds = sorted({part["type"] for part in place.content if not is_text_part(part)})
                raise TemplateError(
                    f"messages[{place.message}]: the content has parts of the type "
                    f"{', '.join(kinds)}, and the chat template reads only text in a message of "
                    f"the role {place.role!r}; leave them out"
                )

    def _try(self, forms: Sequence[str]) -> list[int] | None:
        """Look what becomes of each content in these forms; None if the template fails on them."""
        same = tuple(  # of a text, what is given is the text
            _TEXT if form == _GIVEN and isinstance(place.content, str) else form
            for place, form in zip(self._places, forms, strict=True)
        )
        if same not in self._seen:
            self._seen[same] = self._render_and_look(
                [
                    _in_form(place.content, form, _entry(place.message))
                    for place, form in zip(self._places, forms, strict=True)
                ]
            )
        return self._seen[same]

    def _render_and_look(self, contents: Sequence[Any]) -> list[int] | None:
        if self._is_over:
            return None
        messages = list(self._messages)
        for place, content in zip(self._places, contents, strict=True):
            messages[place.message] = messages[place.message] | {"content": content}
        try:
            text = self._render(messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, the template cannot read these
            self._is_over = isinstance(error, SecurityError)
            return None
        found = set(_STAND_IN.findall(text))
        printed = {int(number) for number in _PRINTED_PART.findall(text)}
        return [_state(place, found, printed) for place in self._places]

    def _by_index(self, forms: Sequence[str]) -> dict[int, str]:
        return {place.message: form for place, form in zip(self._places, forms, strict=True)}


def _best_form(seen_in: Mapping[str, Sequence[int]], number: int) -> str:
    """Form in which most of a content comes out: the given one, if others do no better."""
    form = max(seen_in, key=lambda form: seen_in[form][number])  # the first of equals
    return form if seen_in[form][number] >= _IN_PART else _TEXT


def _state(place: _Place, found: Collection[str], printed: Collection[int]) -> int:
    if place.message in printed:
        return _PRINTED
    come_out = sum(text in found for text in place.stand_ins)
    if come_out == len(place.stand_ins):
        return _READ
    return _IN_PART if come_out else _ABSENT
