"""SentencePiece vocabularies with scores: Llama 2, Mistral, Gemma.

Text is cut into characters, a space written as U+2581 "▁". As long as two neighbours together are a
token, the pair whose token has the highest score is joined (the leftmost of equal ones first). A
character that is no token becomes its UTF-8 bytes, each a token of its own (``<0x0A>``).

Sources: Kudo and Richardson, "SentencePiece" (2018), whose BPE mode this is; the keys
``tokenizer.ggml.scores``, ``token_type`` and ``add_space_prefix`` of the GGUF documentation.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Final

from rml.errors import TokenizerError
from rml.tokenizers.bpe import missing_bytes
from rml.tokenizers.byte_level import as_bytes
from rml.tokenizers.text_model import Prefix
from rml.tokenizers.word_cache import WordCache

__all__ = ["SPACE", "SentencePiece", "WordCutter", "byte_tokens", "spm_merge"]

SPACE: Final = "▁"
_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_MANY: Final = 64


def spm_merge(
    text: str, vocab: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[int, int]]:
    """Join neighbours by score until no two together are a token.

    Takes O(n log n) steps and no recursion.

    Parameters
    ----------
    text : str, n characters
        With spaces already written as "▁".
    vocab : mapping of str to int
        The tokens that text may become.
    scores : sequence of float
        By id.

    Returns
    -------
    list of (start, end)
        The pieces in order; each is a token or a single character.
    """
    n = len(text)
    ends = list(range(1, n + 1))  # of the piece that starts here; 0 where none starts any more
    starts = list(range(-1, n - 1))  # of the piece before the one that starts here
    # A candidate is (-score, start, end): highest score first, then leftmost. It is stale when
    # one of its two pieces was joined meanwhile; its middle then is no border, or its end differs.
    candidates: list[tuple[float, int, int, int]] = [
        (-scores[found], i, i + 1, i + 2)
        for i in range(n - 1)
        if (found := vocab.get(text[i : i + 2])) is not None
    ]
    heapify(candidates)
    while candidates:
        _, start, middle, end = heappop(candidates)
        if ends[start] != middle or ends[middle] != end:
            continue
        ends[start] = end
        ends[middle] = 0
        if end < n:
            starts[end] = start
            after = ends[end]
            if (found := vocab.get(text[start:after])) is not None:
                heappush(candidates, (-scores[found], start, end, after))
        before = starts[start]
        if before >= 0 and (found := vocab.get(text[before:end])) is not None:
            heappush(candidates, (-scores[found], before, start, end))
    pieces = []
    start = 0
    while start < n:
        pieces.append((start, ends[start]))
        start = ends[start]
    return pieces


class SentencePiece:
    """Text to ids and back for a vocabulary with scores.

    Immutable but for its word cache, and safe to share between threads.

    Parameters
    ----------
    tokens : sequence of str, length n_vocab
        Vocabulary, with "▁" for a space.
    scores : sequence of float, length n_vocab
        A higher one goes first.
    reserved : collection of int
        Ids that text never becomes: control, unknown and byte tokens.
    bytes_by_id : mapping of int to int
        Byte value of each byte token.
    unknown_id : int or None
        Stands for a character that has neither a token nor byte tokens; without it such a
        character leaves no trace.
    prefix : bool
        Put a space before a text, also before one that follows a special token.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        scores: Sequence[float],
        reserved: Collection[int],
        bytes_by_id: Mapping[int, int],
        unknown_id: int | None,
        *,
        prefix: bool,
    ) -> None:
        self.prefix: Prefix = "always" if prefix else "never"
        self._tokens = tokens
        self._scores = scores
        self._vocab = dict(zip(tokens, range(len(tokens)), strict=True))
        for i in reserved:
            if self._vocab.get(tokens[i]) == i:
                del self._vocab[tokens[i]]
        self._bytes_by_id = bytes_by_id
        self._ids_by_byte = {byte: i for i, byte in bytes_by_id.items()}
        self._unknown_id = unknown_id
        self._cache = WordCache(self._encode_word)

    @cached_property
    def _cut(self) -> "WordCutter":
        return WordCutter(self._vocab)

    def encode(self, text: str, *, first: bool = True, control: bool = False) -> list[int]:  # noqa: ARG002
        """Ids of a text without special tokens."""
        if not text:
            return []
        text = text.replace(" ", SPACE)
        return self._cache.encode(self._cut(SPACE + text if self.prefix == "always" else text))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        byte = self._bytes_by_id.get(token_id)
        if byte is not None:
            return bytes([byte])
        return as_bytes(self._tokens[token_id].replace(SPACE, " "))

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary."""
        return missing_bytes([self._ids_by_byte.get(byte) for byte in range(256)])

    def _encode_word(self, word: str) -> tuple[int, ...]:
        whole = self._vocab.get(word)
        if whole is not None and len(word) == 1:
            return (whole,)
        ids: list[int] = []
        for start, end in spm_merge(word, self._vocab, self._scores):
            piece = word[start:end]
            found = self._vocab.get(piece)
            ids += self._fallback(piece) if found is None else (found,)
        return tuple(ids)

    def _fallback(self, char: str) -> list[int]:
        ids = [self._ids_by_byte.get(byte, self._unknown_id) for byte in as_bytes(char)]
        if any(byte not in self._ids_by_byte for byte in as_bytes(char)):
            ids = [self._unknown_id]
        return [i for i in ids if i is not None]


class WordCutter:
    """Cut a text before each "▁" that no token reaches across.

    Joining never crosses such a place, so the words can be encoded one by one, and remembered.

    Parameters
    ----------
    tokens : iterable of str
        All tokens that text may become.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        # Characters that stand before a "▁" inside a token: behind them nothing is cut.
        border = "\ud800"  # stands in no token
        bound = set(re.findall(f"([^{SPACE}{border}]){SPACE}", border.join(tokens)))
        inner = "".join(map(re.escape, bound))
        self._cut: Callable[[str], list[str]] | None = None
        if len(bound) <= _MANY:
            self._cut = re.compile(f"(?<=[^{SPACE}{inner}])(?={SPACE})").split

    def __call__(self, text: str) -> list[str]:
        """Words of a text; joined they are the text again."""
        return [text] if self._cut is None else self._cut(text)


def byte_tokens(tokens: Sequence[str], ids: Iterable[int], where: str) -> dict[int, int]:
    """Byte value of each byte token.

    Raises
    ------
    TokenizerError
        One is not written ``<0xNN>`` with two upper-case hexadecimal digits.
    """
    values = {}
    for i in ids:
        found = _BYTE.fullmatch(tokens[i])
        if found is None:
            raise TokenizerError(
                f"{where}: token {i} is of type byte, but its text is {tokens[i]!r}; "
                "expected is <0x00> to <0xFF>"
            )
        values[i] = int(found[1], 16)
    return values
