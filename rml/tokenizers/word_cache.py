"""Remember the ids of words: text repeats itself, and merging is the slow part."""

from collections.abc import Callable, Iterable
from typing import Final

__all__ = ["WordCache"]

_WORDS: Final = 1 << 15  # a word and its ids take some 300 bytes: 10 MB at the most
_LENGTH: Final = 48  # characters; longer words seldom come back


class WordCache:
    """A bounded memory of words, safe to share between threads.

    When it is full it is emptied: that costs each frequent word one more merge.

    Parameters
    ----------
    encode_word : callable
        Ids of one word.
    """

    def __init__(self, encode_word: Callable[[str], tuple[int, ...]]) -> None:
        self._encode_word = encode_word
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of words, in order."""
        ids: list[int] = []
        known = self._known
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode_word(word)
                if len(word) <= _LENGTH:
                    if len(known) >= _WORDS:
                        known.clear()
                    known[word] = found
            ids += found
        return ids
