"""Bytes written as visible characters, the spelling of byte-level vocabularies.

GPT-2 gave each of the 256 bytes a printable character, so that a vocabulary can be stored as text:
bytes that print keep their Latin-1 character, the other 68 take U+0100, U+0101, ... in order.
Space becomes "Ġ", newline "Ċ".

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and the
``ByteLevel`` pre-tokenizer of Hugging Face tokenizers, which spells bytes alike.
"""

from rml.errors import ArgumentError
from rml.ranges import plain_text

__all__ = ["BYTE_TO_CHAR", "CHAR_TO_BYTE", "as_bytes", "as_text", "from_visible", "to_visible"]

_PRINTING = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTING]

BYTE_TO_CHAR: dict[int, str] = {byte: chr(byte) for byte in _PRINTING} | {
    byte: chr(0x100 + n) for n, byte in enumerate(_HIDDEN)
}
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in BYTE_TO_CHAR.items()}

_TO_VISIBLE = str.maketrans({chr(byte): char for byte, char in BYTE_TO_CHAR.items()})
_FROM_VISIBLE = str.maketrans({char: chr(byte) for char, byte in CHAR_TO_BYTE.items()})


def to_visible(data: bytes) -> str:
    """Spell bytes as visible characters, one a byte."""
    return data.decode("latin-1").translate(_TO_VISIBLE)


def from_visible(text: str) -> bytes:
    """Bytes that a vocabulary entry spells.

    An entry with a character outside the spelling (an added token, written as plain text) means
    its own UTF-8 bytes.
    """
    if all(char in CHAR_TO_BYTE for char in text):
        return text.translate(_FROM_VISIBLE).encode("latin-1")
    return as_bytes(text)


def as_text(data: str | bytes) -> str:
    """Text to tokenize: bytes that are not UTF-8 become lone surrogates (``surrogateescape``)."""
    if isinstance(data, str):
        return plain_text(data)
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data).decode("utf-8", "surrogateescape")
    raise ArgumentError(f"text is str or bytes, not {type(data).__name__}")


def as_bytes(text: str) -> bytes:
    """UTF-8 bytes of a text in which lone surrogates mean bytes.

    U+DC80 to U+DCFF are the bytes 0x80 to 0xFF (``surrogateescape``); any other lone surrogate is
    its own three bytes, as ``surrogatepass`` writes it.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b"".join(
            char.encode(
                "utf-8", "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
            )
            for char in text
        )
