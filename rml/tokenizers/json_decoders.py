"""How a tokenizer.json makes text of tokens: its decoder, as something that works token by token.

A decoder of Hugging Face tokenizers sees the texts of all tokens at once. Here each token has bytes
of its own, perhaps other ones behind other tokens, and a space at the beginning of the text may be
taken away; so text that arrives in pieces is the text of all ids at once. Steps for which that does
not hold are refused by name.

The space that encoding puts before a text is taken away also behind a control token, so that text
comes back as it was; and only that one, where Hugging Face's Metaspace drops all spaces that the
first token has.

Source: the behaviour of Hugging Face tokenizers.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rml.errors import TokenizerError
from rml.tokenizers.byte_level import as_bytes, from_visible
from rml.tokenizers.json_stages import flat, read_replace
from rml.tokenizers.patterns import grown_too_much, most_characters, seconds_for

__all__ = ["Decoder", "read_decoder"]

_SCHEMES: Final = ("always", "first", "never")
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# What WordPiece's cleaning up puts together; English, and token by token.
_CLEANED: Final = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


Step = Callable[[str, bool], str]
"""Text of a token, and whether it is the first -> text."""


@dataclass(slots=True)
class Decoder:
    """Bytes of tokens.

    Attributes
    ----------
    steps : list of callable
        Changes of a token's text, one after the other.
    bytes_of : callable
        What makes bytes of the text in the end.
    joins : bool
        Whether it matters to a token's bytes that it is the first.
    strips : bool
        A space at the beginning of the text is taken away.
    """

    steps: list[Step] = field(default_factory=list)
    bytes_of: Callable[[str], bytes] = as_bytes
    joins: bool = False
    strips: bool = False

    def __call__(self, text: str, first: bool = True) -> bytes:
        """Bytes of a token, given its text and whether it is the first."""
        return self.bytes_of(self._changed(text, first))

    def of_added(self, text: str) -> bytes:
        """Bytes of an added token, whose text is not spelled in visible bytes."""
        changed = self._changed(text, first=True)
        return as_bytes(changed) if self.bytes_of is from_visible else self.bytes_of(changed)

    def _changed(self, text: str, first: bool) -> str:
        given, most = text, most_characters(text)
        for step in self.steps:
            text = step(text, first)
            if len(text) > most:
                raise grown_too_much("the decoder", given, most)
        return text


def read_decoder(spec: Mapping[str, Any] | None, where: str) -> Decoder:
    """Build the decoder of a tokenizer.json; without one, spaces separate the tokens.

    Raises
    ------
    TokenizerError
        A step is not implemented, or stands where its effect depends on other tokens.
    """
    if spec is None:
        return Decoder([lambda text, first: text if first else " " + text], joins=True)
    decoder = Decoder()
    before: list[str] = []
    for part in flat(spec, "decoders", where, "decoder"):
        kind = part["type"]
        fused = "Fuse" in before or "ByteLevel" in before
        if kind == "Fuse":
            pass
        elif kind == "Strip" and fused:
            _strip_text(decoder, part, where)
        elif fused and not (kind == "Replace" and _is_of_characters(part, before)):
            _refuse_place(where, kind, "Fuse" if "Fuse" in before else "ByteLevel")
        elif "ByteFallback" in before and kind != "ByteFallback" and not fused:
            _refuse_place(where, kind, "ByteFallback")
        else:
            _ADD[kind](decoder, part, where)
        before.append(kind)
    if decoder.joins and decoder.strips:
        _refuse_place(where, "Strip" if "Strip" in before else "Metaspace", "WordPiece")
    return decoder


def _refuse_place(where: str, kind: str, before: str) -> None:
    raise TokenizerError(
        f"{where}: the decoder {kind!r} behind {before!r} is not implemented, and it changes text"
    )


def _is_of_characters(part: Mapping[str, Any], before: list[str]) -> bool:
    """Whether a replacement does the same to a text and to each of its tokens."""
    one = isinstance(part["pattern"], Mapping) and len(part["pattern"].get("String", "")) == 1
    return one and not {"Strip", "ByteFallback", "ByteLevel"} & set(before)


def _byte_level(decoder: Decoder, _: Mapping[str, Any], __: str) -> None:
    decoder.bytes_of = from_visible


def _byte_fallback(decoder: Decoder, _: Mapping[str, Any], __: str) -> None:
    decoder.bytes_of = _byte_or_text


def _byte_or_text(text: str) -> bytes:
    found = _BYTE.fullmatch(text)
    return as_bytes(text) if found is None else bytes([int(found[1], 16)])


def _metaspace(decoder: Decoder, part: Mapping[str, Any], where: str) -> None:
    replacement = part.get("replacement", "▁")
    scheme = part.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if part.get("add_prefix_space", True) else "never"
    if len(replacement) != 1 or scheme not in _SCHEMES:
        raise TokenizerError(
            f"{where}: the decoder 'Metaspace' has replacement {replacement!r} and prepend_scheme "
            f"{scheme!r}; expected are one character and one of {', '.join(_SCHEMES)}"
        )
    decoder.steps.append(lambda text, _: text.replace(replacement, " "))
    decoder.strips = scheme != "never"


def _replaced(decoder: Decoder, part: Mapping[str, Any], where: str) -> None:
    replace = read_replace(part, where)

    def replaced(text: str, _: bool) -> str:
        return replace(text, most_characters(text), time.monotonic() + seconds_for(text))

    decoder.steps.append(replaced)


def _strip_tokens(decoder: Decoder, part: Mapping[str, Any], where: str) -> None:
    content, start, stop = _strip(part, where)

    def strip(text: str, _: bool) -> str:
        rest = text.lstrip(content)
        text = text[min(start, len(text) - len(rest)) :]
        rest = text.rstrip(content)
        return text[: len(text) - min(stop, len(text) - len(rest))]

    decoder.steps.append(strip)


def _strip_text(decoder: Decoder, part: Mapping[str, Any], where: str) -> None:
    content, start, stop = _strip(part, where)
    if stop or (start and (content != " " or start > 1 or decoder.strips)):
        raise TokenizerError(
            f"{where}: the decoder 'Strip' of {start} {content!r} at the beginning and {stop} at "
            "the end of a text is not implemented, and it changes text; rml takes away one space "
            "at the beginning"
        )
    decoder.strips |= bool(start)


def _strip(part: Mapping[str, Any], where: str) -> tuple[str, int, int]:
    content, start, stop = part["content"], part["start"], part["stop"]
    if len(content) != 1 or start < 0 or stop < 0:
        raise TokenizerError(
            f"{where}: the decoder 'Strip' has content {content!r}, start {start} and stop {stop}; "
            "expected are one character and whole numbers from 0 on"
        )
    return content, start, stop


def _word_piece(decoder: Decoder, part: Mapping[str, Any], _: str) -> None:
    prefix = part.get("prefix", "##")
    cleanup = part.get("cleanup", True)

    def join(text: str, first: bool) -> str:
        if not first:
            text = text[len(prefix) :] if text.startswith(prefix) else " " + text
        for apart, together in _CLEANED if cleanup else ():
            text = text.replace(apart, together)
        return text

    decoder.steps.append(join)
    decoder.joins = True


_ADD: Final[Mapping[str, Callable[[Decoder, Mapping[str, Any], str], None]]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Metaspace": _metaspace,
    "Replace": _replaced,
    "Strip": _strip_tokens,
    "WordPiece": _word_piece,
}
