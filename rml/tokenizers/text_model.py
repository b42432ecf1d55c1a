"""What every kind of vocabulary offers to the tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rml.tokenizers.end_tokens import EndTokens
from rml.tokenizers.special_tokens import SpecialToken

__all__ = ["Parts", "Prefix", "TextModel"]

Prefix = Literal["never", "first", "always"]
"""Which text gets a space before it: none, one that nothing precedes, or also one that follows a
special token."""


class TextModel(Protocol):
    """Turns the text between special tokens into ids, and an id into bytes."""

    @property
    def prefix(self) -> Prefix:
        """Which text gets a space that decoding has to take away again."""
        ...

    @property
    def joined_bytes(self) -> Callable[[int], bytes] | None:
        """Bytes of a token behind another one, if those are not its `token_bytes`."""
        ...

    def encode(self, pieces: Sequence[str | int], *, control: bool) -> list[int]:
        """Ids of a text that was cut at its special tokens.

        Parameters
        ----------
        pieces : sequence of str or int
            Text in which `SpecialTokens` finds nothing any more, and ids, which stay.
        control : bool
            Control tokens may be made, for vocabularies that look for some of them later.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        ...

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary; mostly nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that a `Tokenizer` is made of, whatever file it comes from.

    Attributes
    ----------
    model : TextModel
        For text between special tokens.
    tokens : list of str
        Texts by id, as the file spells them; "" where an id has no token.
    specials : list of SpecialToken
        Tokens found in raw text.
    special_bytes : mapping of int to bytes
        Bytes of special tokens that are not those of their text.
    bos_id, eos_id : int or None
        Beginning and end of text.
    before, after : tuple of int
        What encoding puts before and after a text.
    end_tokens : mapping of int to tuple of str
        Ids that end a generation, and what says so.
    chat_templates : mapping
        Source by name.
    """

    model: TextModel
    tokens: list[str]
    specials: list[SpecialToken]
    bos_id: int | None
    eos_id: int | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    special_bytes: Mapping[int, bytes] = field(default_factory=dict)
    end_tokens: EndTokens = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
