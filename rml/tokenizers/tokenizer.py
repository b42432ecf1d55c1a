"""The tokenizer: text to ids and back, for every kind of vocabulary that rml reads.

Text is first cut at special tokens; what lies between goes through the vocabulary's own model
(byte-level BPE, SentencePiece). Decoding joins the bytes of the ids and reads them as UTF-8, so
``decode(encode(text)) == text``.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from operator import index
from typing import Any, Final

from rml.errors import ArgumentError
from rml.memory_room import out_of_memory
from rml.ranges import boolean, checked, iterated, plain_text, shown
from rml.tokenizers.byte_level import as_bytes, as_text
from rml.tokenizers.end_tokens import within
from rml.tokenizers.gguf_tokenizer import gguf_parts
from rml.tokenizers.json_ends import Beside
from rml.tokenizers.json_tokenizer import json_parts
from rml.tokenizers.special_tokens import SpecialTokens
from rml.tokenizers.stream_decoder import StreamDecoder
from rml.tokenizers.text_model import Parts

__all__ = ["Tokenizer"]

_BLANK: Final = 0x20

# Text in which tokenizers differ: words, numbers, blanks, scripts, composed letters, code.
_PROBE: Final = (
    "The quick brown fox's 12345 ½ ﬁne don't HELLO  world\n\n\t  x = [1, 2.5e-3]; // \r\n"
    "naïve café cafe\u0301 Ａｂｃ ß İı Straße 你好世界 こんにちは 안녕하세요 Привет мир مرحبا "
    "שלום नमस्ते สวัสดี 👩‍👩‍👧‍👦🏽 \u200b\ufeff\xa0\x00 ---- ==== https://example.org/a?b=c&d "
    "<s></s><unk><|im_start|><|endoftext|>[INST] zażółć gęślą 1000000 _snake_caseCamelCase"
)


class Tokenizer:
    """Text to ids and back. Immutable, and safe to share between threads.

    Made by `rml.load_tokenizer` or `Tokenizer.from_gguf`.

    Attributes
    ----------
    n_vocab : int
        Number of tokens. A model may have more embedding rows; such ids decode to nothing.
    bos_id, eos_id : int or None
        Beginning and end of text; None where the file names none, never a guess.
    add_bos, add_eos : bool
        Whether `encode` adds them when asked for special tokens.
    end_tokens : mapping of int to tuple of str
        Ids that end a generation (of a text, a turn, a message, a part that a model of code fills
        in), and for each what says so: keys of the files, or its name.
    chat_template : str or None
        The default template's source.
    chat_templates : dict
        All templates of the file, by name.
    """

    def __init__(self, parts: Parts, where: str = "the tokenizer") -> None:
        self._model = parts.model
        self._tokens = parts.tokens
        self._specials = SpecialTokens(t for t in parts.specials if not t.normalized)
        self._named = {token.text: token.id for token in parts.specials}
        # Bytes by id: those of special tokens, and of others once they were asked for.
        self._bytes = {token.id: as_bytes(token.text) for token in parts.specials}
        self._bytes.update(parts.special_bytes)
        self._fragments = frozenset(self._bytes)
        self._control = frozenset(token.id for token in parts.specials if token.control)
        self._before = parts.before
        self._after = parts.after
        self.n_vocab = len(parts.tokens)
        self.bos_id = parts.bos_id
        self.eos_id = parts.eos_id
        self.add_bos = self.bos_id is not None and self.bos_id in parts.before
        self.add_eos = self.eos_id is not None and self.eos_id in parts.after
        self.end_tokens = within(parts.end_tokens, self.n_vocab, where)
        self.chat_templates = dict(parts.chat_templates)
        self.chat_template = self.chat_templates.get("default")

    @classmethod
    @out_of_memory("a tokenizer")
    def from_gguf(
        cls, metadata: Mapping[str, Any], *, path: str = "", pre: str | None = None
    ) -> "Tokenizer":
        """Build from the keys of a GGUF file.

        Parameters
        ----------
        metadata : mapping
            Keys and values, ``tokenizer.ggml.*`` and ``tokenizer.chat_template`` among them.
        path : str
            Names the file in messages.
        pre : str, optional
            Splitting rule to use instead of the file's own ``tokenizer.ggml.pre``.

        Raises
        ------
        TokenizerError
            The vocabulary is missing or broken, of a kind that rml does not have, or its splitting
            rule is unknown.
        """
        if pre is not None:
            pre = checked("pre", pre, _rule_name)
        where = path or "the metadata"
        return cls(gguf_parts(metadata, where, pre), where)

    @classmethod
    @out_of_memory("a tokenizer")
    def from_json(
        cls, document: Mapping[str, Any], beside: Beside, *, path: str = ""
    ) -> "Tokenizer":
        """Build from a tokenizer.json and the files beside it, already read.

        Raises
        ------
        TokenizerError
            Something is broken, or asked for that changes ids and is not implemented.
        """
        where = path or "the tokenizer.json"
        return cls(json_parts(document, beside, where), where)

    @out_of_memory("the tokens of a text")
    def encode(
        self, text: str | bytes, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Ids of a text.

        Parameters
        ----------
        text : str or bytes
            Bytes need not be UTF-8. In a str, lone surrogates mean bytes (``surrogateescape``).
        add_special : bool
            Put the beginning-of-text token before it, and the end-of-text token after it, where
            the vocabulary says so.
        parse_special : bool
            Whether the text of a control token means that token. Leave it off for text that
            others wrote.
        """
        add_special = checked("add_special", add_special, boolean)
        parse_special = checked("parse_special", parse_special, boolean)
        pieces = self._specials.split(as_text(text), control=parse_special)
        ids = self._model.encode(pieces, control=parse_special)
        return [*self._before, *ids, *self._after] if add_special else ids

    @out_of_memory("the tokens of a text")
    def encode_parts(self, parts: Iterable[tuple[str, bool]], add_bos: bool) -> list[int]:
        """Ids of a rendered chat, in which only the template makes control tokens.

        The parts are encoded as one text, so that words form across their borders as they do in
        the whole; only the text of a control token has to lie in what the template wrote.

        Parameters
        ----------
        parts : iterable of (str, bool)
            Text, and whether the template wrote it (`ChatTemplate.render_parts`).
        add_bos : bool
            The prompt starts with exactly one beginning-of-text token, whether the template writes
            it or not. Without such a token in the vocabulary nothing is added.
        """
        parts = list(parts)
        text = "".join(part for part, _ in parts)
        written: list[tuple[int, int]] = []
        end = 0
        for part, by_template in parts:
            start, end = end, end + len(part)
            if by_template and part:
                if written and written[-1][1] == start:
                    start = written.pop()[0]
                written.append((start, end))
        pieces = self._specials.split(text, control=True, written=written)
        ids = self._model.encode(pieces, control=all(by_template for _, by_template in parts))
        if add_bos and self.bos_id is not None:
            own = 0
            while own < len(ids) and ids[own] == self.bos_id:
                own += 1
            ids[:own] = [self.bos_id]
        return ids

    @out_of_memory("the text of tokens")
    def decode(self, ids: int | Iterable[int], skip_special: bool = True) -> str:
        """Text of ids.

        Parameters
        ----------
        ids : int or iterable of int
            One or several, also as an array. An id past the vocabulary (a padding row of the
            embedding) has no text.
        skip_special : bool
            Leave control tokens out.

        Raises
        ------
        ArgumentError
            A negative id, or something that is not an id.
        """
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    @out_of_memory("the text of tokens")
    def decode_bytes(self, ids: int | Iterable[int], skip_special: bool = True) -> bytes:
        """Bytes of ids, before they are read as UTF-8; see `decode`."""
        return _Pieces(self, skip_special, None)(ids)

    def stream_decoder(
        self, skip_special: bool = True, *, previous: int | None = None
    ) -> StreamDecoder:
        """Make a decoder for ids that arrive one by one.

        Its pieces join to `decode` of all ids.

        Parameters
        ----------
        skip_special : bool
            Leave control tokens out.
        previous : int, optional
            The id that stood before the first one. After ordinary text a leading space belongs to
            the text; at the beginning it may be one that encoding puts there.
        """
        return StreamDecoder(_Pieces(self, skip_special, previous))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that one token stands for; those of a control token are its name."""
        if type(token_id) is not int:
            (token_id,) = _token_ids([token_id])
        found = self._bytes.get(token_id)
        if found is None:
            (token_id,) = _token_ids([token_id])
            if token_id >= self.n_vocab:
                return b""
            found = self._bytes[token_id] = self._model.token_bytes(token_id)
        return found

    def _has(self, token_id: int) -> bool:
        return token_id < self.n_vocab and self._tokens[token_id] != ""

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control token, which `decode` leaves out."""
        if type(token_id) is not int:
            (token_id,) = _token_ids([token_id])
        return token_id in self._control

    def token_id(self, text: str) -> int | None:
        """Id of the special token that is written so; None if there is none."""
        if not isinstance(text, str):
            raise ArgumentError(f"the text of a token is a str, not {type(text).__name__}")
        return self._named.get(plain_text(text))

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a generation; `end_tokens` says why."""
        return frozenset(self.end_tokens)

    @property
    def bos_token(self) -> str | None:
        """Text of the beginning-of-text token, for templates."""
        return None if self.bos_id is None else self._tokens[self.bos_id]

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-text token, for templates."""
        return None if self.eos_id is None else self._tokens[self.eos_id]

    def fingerprint(self) -> str:
        """Tell tokenizers apart by what they do: their tokens, and the ids of a page of text.

        Returns
        -------
        str
            SHA-256, hexadecimal.
        """
        digest = hashlib.sha256("".join(self._tokens).encode("utf-8", "surrogatepass"))
        digest.update(repr((list(map(len, self._tokens)), sorted(self._control))).encode())
        for text in (_PROBE, _PROBE.swapcase(), *_PROBE.split()):
            digest.update(repr(self.encode(text)).encode())
        return digest.hexdigest()

    def check(self) -> list[str]:
        """Look for oddities of the vocabulary that encoding tolerates.

        Returns
        -------
        list of str
            One sentence each: merges without tokens, bytes without a token, ids without a text.
        """
        found = self._model.problems()
        if gaps := [i for i, text in enumerate(self._tokens) if not text]:
            found.append(f"{len(gaps)} ids have no text, {gaps[0]} for one")
        if twice := len(self._tokens) - len(gaps) - len(set(filter(None, self._tokens))):
            found.append(f"{twice} tokens have the text of another one")
        return found

    def __repr__(self) -> str:
        return (
            f"Tokenizer({type(self._model).__name__}, n_vocab={self.n_vocab}, "
            f"bos_id={self.bos_id}, eos_id={self.eos_id}, add_bos={self.add_bos})"
        )


class _Pieces:
    """Ids to bytes, with what one id tells the next.

    That is whether a space before it was only added, or whether it is the first.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, previous: int | None) -> None:
        skip_special = checked("skip_special", skip_special, boolean)
        if previous is not None:
            (previous,) = _token_ids([previous])
        self._tokenizer = tokenizer
        self._skip = tokenizer._control if skip_special else frozenset()  # noqa: SLF001
        self._fragments = tokenizer._fragments  # noqa: SLF001  # one class in two
        self._joined = tokenizer._model.joined_bytes  # noqa: SLF001
        self._first = previous is None or previous in self._skip
        self._prefix = tokenizer._model.prefix  # noqa: SLF001
        self._added = self._prefix != "never" and (
            previous is None or (self._prefix == "always" and previous in self._fragments)
        )

    def __call__(self, ids: int | Iterable[int]) -> bytes:
        ids = _token_ids(ids)
        token_bytes = self._tokenizer.token_bytes
        if self._joined is not None:
            return self._bytes_joined(ids, self._joined)
        if self._prefix == "never":
            skip = self._skip
            return b"".join([token_bytes(i) for i in ids if i not in skip])
        pieces = []
        for i in ids:
            piece = token_bytes(i)
            if i in self._fragments:
                self._added = self._prefix == "always" or self._added
                pieces.append(b"" if i in self._skip else piece)
            elif piece:
                pieces.append(piece[1:] if self._added and piece[0] == _BLANK else piece)
                self._added = False
        return b"".join(pieces)

    def _bytes_joined(self, ids: Iterable[int], joined: Callable[[int], bytes]) -> bytes:
        pieces = []
        for i in ids:
            if i not in self._skip and self._tokenizer._has(i):  # noqa: SLF001
                pieces.append(self._tokenizer.token_bytes(i) if self._first else joined(i))
                self._first = False
        return b"".join(pieces)


def _rule_name(value: object) -> str:
    if not isinstance(value, str) or len(text := plain_text(value)) > 200:
        raise ValueError("must be the name of a splitting rule")
    return text


def _token_ids(ids: int | Iterable[int]) -> list[int]:
    """One id or several, as plain integers."""
    if isinstance(ids, str | bytes | bytearray):
        raise ArgumentError(f"token ids are integers, not {type(ids).__name__}: {ids!r:.60}")
    given = None if isinstance(ids, Integral) else iterated(ids)
    if given is None:
        given = [ids]
    found = []
    for i in given:
        try:
            value = index(i)
        except Exception:  # noqa: BLE001 - no integer, or of a class of the caller's
            value = -1
        if value < 0:
            raise ArgumentError(f"{shown(i)} is not a token id, an integer that is at least 0")
        found.append(value)
    return found
