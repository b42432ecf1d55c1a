"""The tokenizer: text to ids and back, for every kind of vocabulary that rml reads.

Text is first cut at special tokens; what lies between goes through the vocabulary's own model
(byte-level BPE, SentencePiece). Decoding joins the bytes of the ids and reads them as UTF-8, so
``decode(encode(text)) == text``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rml.errors import ArgumentError
from rml.memory_room import out_of_memory
from rml.tokenizers.byte_level import as_bytes, as_text
from rml.tokenizers.gguf_tokenizer import gguf_parts
from rml.tokenizers.json_tokenizer import Beside, json_parts
from rml.tokenizers.special_tokens import SpecialToken, SpecialTokens
from rml.tokenizers.stream_decoder import StreamDecoder
from rml.tokenizers.text_model import Parts

__all__ = ["Tokenizer"]

_BLANK: Final = 0x20

# Names under which model makers end a turn or a text; such a control token stops generation even
# where the file's own keys forget it.
_END_NAMES: Final = frozenset(
    (
        "</s>",
        "<EOT>",
        "<eos>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|call|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|eot|>",
        "<|im_end|>",
        "<|flush|>",
        "<|calls|>",
        "<|return|>",
        "<｜end▁of▁sentence｜>",
        "[EOS]",
        "[e~[",
        "[EOT]",
        "_<EOT>",
    )
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
    stop_ids : frozenset of int
        Ids that end a generation: end of text, of turn, of message, and control tokens with a
        well-known end name.
    chat_template : str or None
        The default template's source.
    chat_templates : dict
        All templates of the file, by name.
    """

    def __init__(self, parts: Parts) -> None:
        self._model = parts.model
        self._tokens = parts.tokens
        self._specials = SpecialTokens(t for t in parts.specials if not t.normalized)
        self._named = {token.text: token.id for token in parts.specials}
        # Bytes by id: those of special tokens, and of others once they were asked for.
        self._bytes = {token.id: as_bytes(token.text) for token in parts.specials}
        self._fragments = frozenset(self._bytes)
        self._control = frozenset(token.id for token in parts.specials if token.control)
        self._before = parts.before
        self._after = parts.after
        self.n_vocab = len(parts.tokens)
        self.bos_id = parts.bos_id
        self.eos_id = parts.eos_id
        self.add_bos = self.bos_id is not None and self.bos_id in parts.before
        self.add_eos = self.eos_id is not None and self.eos_id in parts.after
        self.stop_ids = parts.stop_ids | _end_tokens(parts.specials)
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
        return cls(gguf_parts(metadata, path or "the metadata", pre))

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
        return cls(json_parts(document, beside, path or "the tokenizer.json"))

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
    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids.

        Parameters
        ----------
        ids : iterable of int
            An id past the vocabulary (a padding row of the embedding) has no text.
        skip_special : bool
            Leave control tokens out.

        Raises
        ------
        ArgumentError
            A negative id, or something that is not an id.
        """
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    @out_of_memory("the text of tokens")
    def decode_bytes(self, ids: Iterable[int], skip_special: bool = True) -> bytes:
        """Bytes of ids, before they are read as UTF-8; see `decode`."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise ArgumentError(f"decode takes a list of token ids, not {type(ids).__name__}")
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
        found = self._bytes.get(token_id)
        if found is None:
            token_id = _checked(token_id)
            if token_id >= self.n_vocab:
                return b""
            found = self._bytes[token_id] = self._model.token_bytes(token_id)
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control token, which `decode` leaves out."""
        return token_id in self._control

    def token_id(self, text: str) -> int | None:
        """Id of the special token that is written so; None if there is none."""
        return self._named.get(text)

    @property
    def bos_token(self) -> str | None:
        """Text of the beginning-of-text token, for templates."""
        return None if self.bos_id is None else self._tokens[self.bos_id]

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-text token, for templates."""
        return None if self.eos_id is None else self._tokens[self.eos_id]

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
    """Ids to bytes, with what one id tells the next: whether a space before it was only added."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, previous: int | None) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer._control if skip_special else frozenset()  # noqa: SLF001
        self._fragments = tokenizer._fragments  # noqa: SLF001  # one class in two
        self._prefix = tokenizer._model.prefix  # noqa: SLF001
        self._added = self._prefix != "never" and (
            previous is None or (self._prefix == "always" and previous in self._fragments)
        )

    def __call__(self, ids: Iterable[int]) -> bytes:
        token_bytes = self._tokenizer.token_bytes
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


def _checked(token_id: int) -> int:
    try:
        value = int(token_id)
    except (TypeError, ValueError):
        value = -1
    if value < 0 or value != token_id:
        raise ArgumentError(f"{token_id!r} is not a token id")
    return value


def _end_tokens(specials: Iterable[SpecialToken]) -> frozenset[int]:
    """Find control tokens with a well-known end name."""
    named = {
        token.text: token.id for token in specials if token.control and token.text in _END_NAMES
    }
    if "<|return|>" in named:
        # The harmony format ends a message with <|end|>, and the turn goes on after it.
        named.pop("<|end|>", None)
    return frozenset(named.values())
