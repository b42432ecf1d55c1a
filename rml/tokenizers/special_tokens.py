"""Find special tokens in text: the ids that no model of words makes.

Two kinds count. Control tokens (end of turn, beginning of text, ...) are looked for only where the
caller allows it; user-defined tokens stand for their text wherever it occurs. Of several that
match, the leftmost wins, and of those that start together the longest.

Which tokens start at a place is looked up by their first two characters and their lengths, of which
there are few. Where there are many lengths (a stranger's file may have ten thousand), all places of
a text are looked at beforehand, in one pass that takes as long for any set of tokens.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import regex  # type: ignore[import-untyped]  # has no stubs

__all__ = ["SpecialToken", "SpecialTokens"]

_BLANKS: Final = regex.compile(r"\s*")
_MANY: Final = 64
_MANY_LENGTHS: Final = 64  # of tokens that start with the same two characters; real ones have 31
# What Unicode's annex on regular expressions (UTS 18) calls a word character.
_WORD: Final = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]")


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """One entry.

    Attributes
    ----------
    text : str
        What it looks like in text; not empty.
    id : int
        Its id.
    control : bool
        Found only where the caller allows control tokens.
    lstrip, rstrip : bool
        It swallows white space to its left, to its right.
    single_word : bool
        It counts only where no letter, digit or underscore touches it.
    normalized : bool
        It is looked for in the normalized text, by the vocabulary's model.
    """

    text: str
    id: int
    control: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class SpecialTokens:
    """A fixed set of special tokens, indexed by first character and length."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        everything = list(tokens)
        self._all = _Index(everything)
        self._plain = _Index([token for token in everything if not token.control])

    def split(
        self, text: str, *, control: bool, written: Sequence[tuple[int, int]] | None = None
    ) -> list[str | int]:
        """Cut a text at its special tokens.

        Parameters
        ----------
        text : str
            Any text.
        control : bool
            Whether control tokens are looked for.
        written : sequence of (start, end), optional
            Then a control token counts only inside one of these ranges, which rise and do not
            touch each other.

        Returns
        -------
        list of str or int
            Ordinary text (never empty) and ids of special tokens, in order.
        """
        index = self._all if control else self._plain
        if index.first is None:
            return [text] if text else []
        pieces: list[str | int] = []
        start = position = 0
        at_each = self._at_each_place(index, text, written) if index.automaton else None
        while found := index.first.search(text, position):
            begin = found.start()
            token = at_each[begin] if at_each else _longest(index, text, begin, written)
            if token is None:
                position = begin + 1
                continue
            position = end = begin + len(token.text)
            if token.single_word and _touches_word(text, begin, end):
                continue
            if token.lstrip:
                begin = max(begin, start)
                while begin > start and _BLANKS.match(text, begin - 1, begin)[0]:
                    begin -= 1
            if token.rstrip:
                # The search goes on behind the token itself: white space may be a token, too.
                end = _BLANKS.match(text, end).end()
            if begin >= end:  # the token before has swallowed it
                continue
            if begin > start:
                pieces.append(text[start:begin])
            pieces.append(token.id)
            start = end
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def _at_each_place(
        self, index: "_Index", text: str, written: Sequence[tuple[int, int]] | None
    ) -> list[SpecialToken | None]:
        """Longest token that counts at each place."""
        if index.automaton is None or written is None:
            return index.automaton.longest(text) if index.automaton else []
        plain = self._plain.automaton or _Automaton(self._plain.by_text)
        found = plain.longest(text)
        for first, last in written:
            for at, token in enumerate(index.automaton.longest(text[first:last]), first):
                before = found[at]
                if token and (before is None or len(token.text) > len(before.text)):
                    found[at] = token
        return found


class _Automaton:
    """Finds the longest token at every place of a text, however many there are.

    It reads backwards, so that at each place it knows all tokens that begin there; the longest one
    is kept with each of its states.

    Source: A. V. Aho and M. J. Corasick, Efficient string matching: an aid to bibliographic search
    (1975).
    """

    def __init__(self, by_text: Mapping[str, SpecialToken]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._longest: list[SpecialToken | None] = [None]
        self._shorter = [0]  # where the next shorter beginning of a token is
        for text, token in by_text.items():
            state = 0
            for char in reversed(text):
                state = self._next[state].setdefault(char, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._longest.append(None)
                    self._shorter.append(0)
            self._longest[state] = token
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            if self._longest[state] is None:
                self._longest[state] = self._longest[self._shorter[state]]
            for char, further in self._next[state].items():
                self._shorter[further] = self._step(self._shorter[state], char)
                waiting.append(further)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)

    def longest(self, text: str) -> list[SpecialToken | None]:
        """Longest token that begins at each place."""
        found: list[SpecialToken | None] = [None] * len(text)
        state = 0
        for at in range(len(text) - 1, -1, -1):
            state = self._step(state, text[at])
            found[at] = self._longest[state]
        return found


class _Index:
    """Tokens by text, a search for their first two characters, and the lengths to try there."""

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        self.by_text = {token.text: token for token in tokens}
        seconds: dict[str, set[str]] = {}
        for text in self.by_text:
            seconds.setdefault(text[0], set()).add(text[1:2])
        starts = [
            re.escape(first) + ("" if "" in found else f"[{''.join(map(re.escape, found))}]")
            for first, found in seconds.items()
        ]
        if len(starts) > _MANY:  # alternatives are tried one by one
            starts = [f"[{''.join(map(re.escape, seconds))}]"]
        self.first = re.compile("|".join(starts)) if starts else None
        # By the first two characters, since many vocabularies have runs of spaces as tokens and
        # most spaces are alone.
        lengths: dict[str, set[int]] = {}
        for text in self.by_text:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(ns, reverse=True) for start, ns in lengths.items()}
        most = max(map(len, lengths.values()), default=0)
        self.automaton = _Automaton(self.by_text) if most > _MANY_LENGTHS else None

    def candidates(self, text: str, begin: int) -> Iterator[SpecialToken]:
        """Tokens that stand at a place, the longest first."""
        for length in self._lengths.get(text[begin : begin + 2], ()):
            token = self.by_text.get(text[begin : begin + length])
            if token is not None:
                yield token
        single = self.by_text.get(text[begin])
        if single is not None and begin + 1 < len(text):
            yield single


def _longest(
    index: _Index, text: str, begin: int, written: Sequence[tuple[int, int]] | None
) -> SpecialToken | None:
    for token in index.candidates(text, begin):
        if written is None or not token.control:
            return token
        n = bisect_right(written, (begin, len(text))) - 1
        if n >= 0 and begin + len(token.text) <= written[n][1]:
            return token
    return None


def _touches_word(text: str, begin: int, end: int) -> bool:
    before, after = text[max(begin - 1, 0) : begin], text[end : end + 1]
    return bool(_WORD.match(before) or _WORD.match(after))
