"""What every kind of vocabulary offers to the tokenizer."""

from typing import Literal, Protocol

__all__ = ["Prefix", "TextModel"]

Prefix = Literal["never", "first", "always"]
"""Which text gets a space before it: none, one that nothing precedes, or also one that follows a
special token."""


class TextModel(Protocol):
    """Turns text without special tokens into ids, and an id into bytes."""

    @property
    def prefix(self) -> Prefix:
        """Which text gets a space that decoding has to take away again."""
        ...

    @property
    def missing_bytes(self) -> list[int]:
        """Byte values that have no token."""
        ...

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Ids of a text; `first` says that nothing stood before it."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        ...
