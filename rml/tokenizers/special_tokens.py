"""Find special tokens in text: the ids that no model of words makes.

Two kinds count. Control tokens (end of turn, beginning of text, ...) are looked for only where the
caller allows it; user-defined tokens stand for their text wherever it occurs. Of several that
match, the leftmost wins, and of those that start together the longest.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["SpecialToken", "SpecialTokens"]


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
    """

    text: str
    id: int
    control: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class SpecialTokens:
    """A fixed set of special tokens, indexed by first character and length."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        everything = list(tokens)
        self._all = _Index(everything)
        self._plain = _Index([token for token in everything if not token.control])

    def find(self, text: str) -> int | None:
        """Id of the token that is written exactly so."""
        token = self._all.by_text.get(text)
        return None if token is None else token.id

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
            if token.lstrip:
                begin = start + len(text[start:begin].rstrip())
            if token.rstrip:
                position = end = len(text) - len(text[end:].lstrip())
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
        if token.single_word and (
            _in_word(text[begin - 1 : begin]) or _in_word(text[end : end + 1])
        ):
            continue
        if token.control and written is not None and not _inside(begin, end, written):
            continue
        return token
    return None


def _in_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _inside(begin: int, end: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= begin and end <= high for low, high in ranges)
