"""Ids to text piece by piece, as a model produces them.

A piece never ends inside a character, a character appears with the id that completes it, and the
pieces joined together are the text of all ids at once.
"""

import codecs
from collections.abc import Callable, Iterable

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Made by `Tokenizer.stream_decoder`; holds the bytes of an unfinished character.

    Parameters
    ----------
    pieces : callable
        Ids -> bytes of each id, in order; may keep state between calls.
    """

    def __init__(self, pieces: Callable[[int | Iterable[int]], bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, ids: int | Iterable[int]) -> str:
        """Text that these ids complete; bytes that are not UTF-8 become U+FFFD."""
        return self._utf8.decode(self._pieces(ids))

    def flush(self) -> str:
        """Text of a character that stayed unfinished: one U+FFFD, or nothing."""
        return self._utf8.decode(b"", final=True)
