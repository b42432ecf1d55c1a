"""Byte-pair encoding over ids: the merge loop, its table, and the byte-level model.

A word starts as one id a byte. As long as two neighbours have an entry in the table, the pair with
the lowest rank is replaced by its merged id (the leftmost of equal pairs first). The table holds
ids only, so that the loop has no text in it and a compiled twin can share it.

Sources: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016) for
the algorithm; Radford et al. (2019) for its byte-level form.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from operator import add

import numpy as np
import numpy.typing as npt

from rml.tokenizers.byte_level import BYTE_TO_CHAR, as_bytes, from_visible, to_visible
from rml.tokenizers.pretokenize import Splitter
from rml.tokenizers.text_model import Prefix
from rml.tokenizers.word_cache import WordCache

__all__ = [
    "ByteLevelBPE",
    "MergeTable",
    "bpe_merge",
    "merge_table",
    "missing_bytes",
    "missing_merges",
]


class MergeTable:
    """Merges by id, in rank order.

    Parameters
    ----------
    left, right, merged : ndarray of int32, shape (n_merges,)
        Merge number r replaces the neighbours ``left[r]``, ``right[r]`` by ``merged[r]``; a lower
        r goes first. Of two equal pairs the first counts.
    """

    def __init__(
        self,
        left: npt.NDArray[np.int32],
        right: npt.NDArray[np.int32],
        merged: npt.NDArray[np.int32],
    ) -> None:
        if not left.shape == right.shape == merged.shape == (len(left),):
            raise ValueError("left, right and merged differ in shape")
        self.left = left
        self.right = right
        self.merged = merged

    def __len__(self) -> int:
        return len(self.left)

    @cached_property
    def pairs(self) -> dict[int, int]:
        """``left << 32 | right`` -> ``rank << 32 | merged``."""
        ranks = np.arange(len(self), dtype=np.int64)
        keys = self.left.astype(np.int64) << 32 | self.right
        values = ranks << 32 | self.merged
        # Back to front, so that the first of equal pairs is the one that stays.
        return dict(zip(keys[::-1].tolist(), values[::-1].tolist(), strict=True))


def bpe_merge(symbols: Sequence[int], table: MergeTable) -> list[int]:
    """Merge neighbours by rank until none has an entry.

    Takes O(n log n) steps and no recursion, so a word of a hundred thousand letters is fine.

    Parameters
    ----------
    symbols : sequence of int, shape (n,)
        Ids of the word's smallest parts, each below 2**31; not changed.
    table : MergeTable
        The merges.

    Returns
    -------
    list of int
        The ids that are left, in order.
    """
    pairs = table.pairs
    ids = list(symbols)
    end = len(ids)
    # A candidate is (rank << 32 | merged, position): lowest rank first, then leftmost. It is stale
    # when one of its parts was merged meanwhile; the pair found at its position then differs.
    candidates = [
        (value, i)
        for i in range(end - 1)
        if (value := pairs.get(ids[i] << 32 | ids[i + 1])) is not None
    ]
    if not candidates:
        return ids
    heapify(candidates)
    following = list(range(1, end + 1))
    previous = list(range(-1, end - 1))
    gone = -1
    while candidates:
        value, i = heappop(candidates)
        left = ids[i]
        j = following[i]
        if left == gone or j == end or pairs.get(left << 32 | ids[j]) != value:
            continue
        merged = value & 0xFFFFFFFF
        ids[i] = merged
        ids[j] = gone
        k = following[i] = following[j]
        if k != end:
            previous[k] = i
            if (after := pairs.get(merged << 32 | ids[k])) is not None:
                heappush(candidates, (after, i))
        h = previous[i]
        if h >= 0 and (before := pairs.get(ids[h] << 32 | merged)) is not None:
            heappush(candidates, (before, h))
    return [i for i in ids if i != gone]


class ByteLevelBPE:
    """Text to ids and back for a byte-level vocabulary (GPT-2, Llama 3, Qwen, SmolLM, ...).

    Immutable but for its word cache, and safe to share between threads.

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
        self._byte_ids = [vocab.get(BYTE_TO_CHAR[byte], unknown_id) for byte in range(256)]
        self._table, self.missing = merge_table(vocab, len(tokens), merges)
        # Ids past the vocabulary stand for spellings that merges make but no token has.
        self._spellings = {i: from_visible(text) for text, i in self.missing.items()}
        self._cache = WordCache(self._encode_word)

    def encode(self, text: str, *, first: bool = True, control: bool = False) -> list[int]:  # noqa: ARG002
        """Ids of a text without special tokens."""
        return self._cache.encode(self.splitter.split(text))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        return from_visible(self._tokens[token_id])

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary."""
        return [*missing_merges(self.missing), *missing_bytes(self._byte_ids)]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        data = as_bytes(word)
        if self.splitter.ignore_merges:
            whole = self._vocab.get(to_visible(data))
            if whole is not None:
                return (whole,)
        ids = bpe_merge(self._bytes_to_ids(data), self._table)
        if self._spellings:
            ids = [
                part
                for i in ids
                for part in (
                    (i,) if i < len(self._tokens) else self._bytes_to_ids(self._spellings[i])
                )
            ]
        return tuple(ids)

    def _bytes_to_ids(self, data: bytes) -> list[int]:
        ids = [self._byte_ids[byte] for byte in data]
        return [i for i in ids if i is not None]


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
) -> tuple[MergeTable, dict[str, int]]:
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
    return MergeTable(*columns), missing
