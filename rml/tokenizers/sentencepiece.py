"""SentencePiece vocabularies with scores: Llama 2, Mistral, Gemma.

Text is cut into characters, a space written as U+2581 "▁". As long as two neighbours together are a
token, the pair whose token has the highest score is joined (the leftmost of equal ones first). A
character that is no token becomes its UTF-8 bytes, each a token of its own (``<0x0A>``).

Sources: Kudo and Richardson, "SentencePiece" (2018), whose BPE mode this is; the keys
``tokenizer.ggml.scores``, ``token_type`` and ``add_space_prefix`` of the GGUF documentation.
"""

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rml._kernels import spm_merge
from rml._kernels.merge_tables import TokenTable, code_points
from rml.errors import TokenizerError
from rml.tokenizers.bpe import missing_bytes
from rml.tokenizers.byte_level import as_bytes
from rml.tokenizers.text_model import Prefix

__all__ = ["SPACE", "SentencePiece", "WordCutter", "byte_tokens"]

SPACE: Final = "▁"
_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePiece:
    """Text to ids and back for a vocabulary with scores.

    Immutable but for what it works out at first use, and safe to share between threads.

    Parameters
    ----------
    tokens : sequence of str, length n_vocab
        Vocabulary, with "▁" for a space.
    scores : (n_vocab,) float32
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

    joined_bytes = None

    def __init__(
        self,
        tokens: Sequence[str],
        scores: npt.NDArray[np.float32],
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
        self._fallbacks: dict[int, list[int]] = {}

    @cached_property
    def _cutter(self) -> "WordCutter":
        return WordCutter(self._vocab)

    @cached_property
    def _table(self) -> TokenTable:
        return TokenTable(self._vocab, self._scores)

    def encode(self, pieces: Sequence[str | int], *, control: bool) -> list[int]:  # noqa: ARG002
        """Ids of a text that was cut at its special tokens."""
        before = SPACE if self.prefix == "always" else ""
        # An id stands in the text as a word of one character, which merging leaves alone.
        texts = ["\0" if isinstance(p, int) else before + p.replace(" ", SPACE) for p in pieces]
        points = code_points("".join(texts))
        borders = self._cutter.borders(points)
        edges = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
        if len(pieces) > 1:
            borders = np.unique(np.concatenate((borders, edges)))
        symbols = np.empty(len(points), np.int32)
        spm_merge(points, borders, self._table, symbols)
        for edge, piece in zip(edges.tolist(), pieces, strict=False):
            if isinstance(piece, int):
                symbols[edge] = piece
        ids: list[int] = symbols[symbols != -1].tolist()
        if ids and min(ids) < 0:
            fallback = self._fallback
            ids = [part for i in ids for part in ((i,) if i >= 0 else fallback(-2 - i))]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        byte = self._bytes_by_id.get(token_id)
        if byte is not None:
            return bytes([byte])
        return as_bytes(self._tokens[token_id].replace(SPACE, " "))

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary."""
        return missing_bytes([self._ids_by_byte.get(byte) for byte in range(256)])

    def _fallback(self, point: int) -> list[int]:
        """Ids of a character without a token."""
        ids = self._fallbacks.get(point)
        if ids is None:
            found = [self._ids_by_byte.get(byte) for byte in as_bytes(chr(point))]
            if None in found:
                found = [self._unknown_id]
            ids = self._fallbacks[point] = [i for i in found if i is not None]
        return ids


class WordCutter:
    """Cut a text before each "▁" that no token reaches across.

    Joining never crosses such a place, and short words are joined faster.

    Parameters
    ----------
    tokens : iterable of str
        All tokens that text may become.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        tokens = list(tokens)
        points = code_points("".join(tokens))
        # Characters that stand before a "▁" inside a token, or are one: behind them is no cut.
        inside = points == ord(SPACE)
        starts = np.cumsum([0, *map(len, tokens)])[:-1]
        inside[starts[starts < len(points)]] = False
        self._bound = np.zeros(sys.maxunicode + 1, np.bool_)
        self._bound[points[np.flatnonzero(inside) - 1]] = True
        self._bound[ord(SPACE)] = True

    def borders(self, points: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Borders of the words of a text given as code points, from 0 to its length."""
        spaces = np.flatnonzero(points[1:] == ord(SPACE))
        cuts = spaces[~self._bound[points[spaces]]] + 1
        return np.concatenate(([0], cuts, [len(points)]), dtype=np.int64)

    def split(self, text: str) -> list[str]:
        """Words of a text; joined they are the text again."""
        borders = self.borders(code_points(text)).tolist()
        return [text[start:end] for start, end in pairwise(borders)]


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
