"""Byte-pair encoding: the table of merges, and the byte-level model.

A word starts as one id a byte, and the kernel `bpe_merge` merges all words of a text at once. It
and its table know ids only, no text.

Sources: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016) for
the algorithm; Radford et al. (2019) for its byte-level form.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import add

import numpy as np
import numpy.typing as npt

from rml._kernels import bpe_merge
from rml._kernels.merge_tables import PairTable, word_lengths
from rml.tokenizers.byte_level import BYTE_TO_CHAR, as_bytes, from_visible, to_visible
from rml.tokenizers.pretokenize import Splitter
from rml.tokenizers.text_model import Prefix

__all__ = [
    "ByteLevelBPE",
    "merge_table",
    "merge_word",
    "missing_bytes",
    "missing_merges",
]


def merge_word(symbols: Sequence[int], table: PairTable) -> list[int]:
    """Ids that merging leaves of one word."""
    ids = np.array(symbols, np.int32)
    bpe_merge(ids, np.array([0, len(ids)], np.int64), table)
    left: list[int] = ids[ids >= 0].tolist()
    return left


class ByteLevelBPE:
    """Text to ids and back for a byte-level vocabulary (GPT-2, Llama 3, Qwen, SmolLM, ...).

    Immutable, and safe to share between threads.

    Parameters
    ----------
    tokens : sequence of str, length n_vocab
        Vocabulary in the visible spelling of bytes.
    reserved : collection of int
        Ids that text never becomes: control and unknown tokens.
    merges : pair of equally long sequences of str
        Left and right parts of the merges, in rank order. A merge whose parts or result have no
        token still applies, and what is left of it in the end is spelled in single bytes.
    splitter : Splitter
        Cuts text into words; no merge crosses a cut.
    unknown_id : int or None
        Stands for a byte that has no token. Without it such a byte leaves no trace, as in the
        reference implementations; valid text has such bytes only in control characters.
    """

    prefix: Prefix = "never"
    joined_bytes = None

    def __init__(
        self,
        tokens: Sequence[str],
        reserved: Collection[int],
        merges: tuple[Sequence[str], Sequence[str]],
        splitter: Splitter,
        unknown_id: int | None = None,
    ) -> None:
        self.splitter = splitter
        self._tokens = tokens
        vocab = dict(zip(tokens, range(len(tokens)), strict=True))
        for i in reserved:
            if vocab.get(tokens[i]) == i:
                del vocab[tokens[i]]
        self._vocab = vocab
        byte_ids = [vocab.get(BYTE_TO_CHAR[byte], unknown_id) for byte in range(256)]
        self._missing_bytes = missing_bytes(byte_ids)
        self._byte_ids = np.array([-1 if i is None else i for i in byte_ids], np.int32)
        self._table, self.missing = merge_table(vocab, len(tokens), merges)
        # Ids past the vocabulary stand for spellings that merges make but no token has.
        self._spellings = {i: from_visible(text) for text, i in self.missing.items()}

    def encode(self, pieces: Sequence[str | int], *, control: bool) -> list[int]:  # noqa: ARG002
        """Ids of a text that was cut at its special tokens."""
        words: list[str] = []
        special: list[tuple[int, int]] = []  # number of a word that stands for an id, and the id
        for piece in pieces:
            if isinstance(piece, int):
                special.append((len(words), piece))
                words.append("\0")
            else:
                words += self.splitter.split(piece)
        data, borders = _bytes_of(words)
        symbols = self._byte_ids[np.frombuffer(data, np.uint8)]
        if self.splitter.ignore_merges:
            self._put_whole_words(symbols, data, borders)
        for word, token in special:
            symbols[borders[word]] = token
        bpe_merge(symbols, borders, self._table)
        ids: list[int] = symbols[symbols >= 0].tolist()
        if self._spellings and max(ids, default=0) >= len(self._tokens):
            ids = [part for i in ids for part in self._spelled(i)]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        return from_visible(self._tokens[token_id])

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary."""
        return [*missing_merges(self.missing), *self._missing_bytes]

    def _put_whole_words(
        self, symbols: npt.NDArray[np.int32], data: bytes, borders: npt.NDArray[np.int64]
    ) -> None:
        """Make one symbol of each word that is a token."""
        visible = to_visible(data)
        find = self._vocab.get
        found = [find(visible[start:end], -1) for start, end in pairwise(borders.tolist())]
        whole = np.array(found, np.int32)
        lengths = word_lengths(borders)
        symbols[np.repeat(whole >= 0, lengths)] = -1
        symbols[borders[:-1][whole >= 0]] = whole[whole >= 0]

    def _spelled(self, token_id: int) -> list[int]:
        """Return an id itself, or the bytes of a spelling that has no token."""
        if token_id < len(self._tokens):
            return [token_id]
        ids = self._byte_ids[np.frombuffer(self._spellings[token_id], np.uint8)]
        spelled: list[int] = ids[ids >= 0].tolist()
        return spelled


def _bytes_of(words: Sequence[str]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Bytes of words, one after the other, and where each begins and ends in them."""
    text = "".join(words)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates: bytes that are not UTF-8
        pieces = list(map(as_bytes, words))
        return b"".join(pieces), _borders(pieces)
    borders = _borders(words)
    if not text.isascii():
        # A character starts with any byte but those of the form 10xxxxxx.
        starts = np.flatnonzero(np.frombuffer(data, np.int8) >= -64)
        borders = np.append(starts, len(data))[borders]
    return data, borders


def _borders(words: Sequence[str] | Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(accumulate(map(len, words), initial=0), np.int64, len(words) + 1)


def missing_merges(missing: Mapping[str, int]) -> list[str]:
    """Say which spellings merges use that have no token."""
    if not missing:
        return []
    return [f"merges use {len(missing)} spellings without a token, {next(iter(missing))!r} for one"]


def missing_bytes(byte_ids: Sequence[int | None]) -> list[str]:
    """Say which bytes have no token; text with them does not come back whole."""
    values = [f"0x{byte:02X}" for byte, token in enumerate(byte_ids) if token is None]
    return [f"{len(values)} bytes have no token: {', '.join(values)}"] if values else []


def merge_table(
    vocab: Mapping[str, int], n_vocab: int, merges: tuple[Sequence[str], Sequence[str]]
) -> tuple[PairTable, dict[str, int]]:
    """Return the merges by id, and ids past the vocabulary for spellings without a token.

    Parameters
    ----------
    vocab : mapping of str to int
        Tokens that merges may make.
    n_vocab : int
        The first id that is free.
    merges : pair of sequences of str
        Left and right parts, in rank order.
    """
    missing: dict[str, int] = {}
    columns = []
    for texts in (*merges, list(map(add, *merges))):
        ids = list(map(vocab.get, texts))
        if None in ids:
            for n, text in enumerate(texts):
                if ids[n] is None:
                    ids[n] = missing.setdefault(text, n_vocab + len(missing))
        columns.append(np.array(ids, dtype=np.int32))
    return PairTable(*columns), missing
