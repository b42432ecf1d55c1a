"""Find special tokens in text: the ids that no model of words makes.

Two kinds count. Control tokens (end of turn, beginning of text, ...) are looked for only where the
caller allows it; user-defined tokens stand for their text wherever it occurs. Of several that
match, the leftmost wins, and of those that start together the longest.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import regex  # type: ignore[import-untyped]  # has no stubs

__all__ = ["SpecialToken", "SpecialTokens"]

_BLANKS: Final = regex.compile(r"\s*")
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
        while found := index.first.search(text, position):
            begin = found.start()
            token = _longest(index, text, begin, written)
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


class _Index:
    """Tokens by text, the lengths to try for a first character, and a search for that character."""

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        self.by_text = {token.text: token for token in tokens}
        lengths: dict[str, set[int]] = {}
        for text in self.by_text:
            lengths.setdefault(text[0], set()).add(len(text))
        self.lengths = {char: sorted(ns, reverse=True) for char, ns in lengths.items()}
        characters = "".join(map(re.escape, lengths))
        self.first = re.compile(f"[{characters}]") if characters else None


def _longest(
    index: _Index, text: str, begin: int, written: Sequence[tuple[int, int]] | None
) -> SpecialToken | None:
    for length in index.lengths[text[begin]]:
        end = begin + length
        token = index.by_text.get(text[begin:end])
        if token is None:
            continue
        if token.control and written is not None and not _inside(begin, end, written):
            continue
        return token
    return None


def _touches_word(text: str, begin: int, end: int) -> bool:
    before, after = text[max(begin - 1, 0) : begin], text[end : end + 1]
    return bool(_WORD.match(before) or _WORD.match(after))


def _inside(begin: int, end: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= begin and end <= high for low, high in ranges)
