"""Tables that the merge kernels look into: pairs of ids, and texts of tokens.

Both are hash tables with open addressing, kept in arrays: an entry stands in the first free slot
from its hash on, and at most half of the slots are taken. The arrays are filled a round at a time
(every entry that is still out tries its next slot), which takes milliseconds for any vocabulary.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml.errors import ArgumentError

__all__ = ["HASHED", "PairTable", "TokenTable", "check_words", "code_points", "word_lengths"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

EMPTY: Final = -1
FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, odd
HASHED: Final = 32  # code points of a token that its hash looks at; its length counts too


class PairTable:
    """Merges by id, in rank order.

    Parameters
    ----------
    left, right, merged : (n_merges,) int32
        Merge number r replaces the neighbours ``left[r]``, ``right[r]`` by ``merged[r]``; a lower
        r goes first. Of two equal pairs the first counts.

    Attributes
    ----------
    slots : (S, 2) int64, S a power of two
        ``left << 32 | right`` and ``rank << 32 | merged``; `EMPTY` where nothing stands. The home
        of a key is the highest bits of its product with `FACTOR`.
    """

    def __init__(self, left: I32, right: I32, merged: I32) -> None:
        if not left.shape == right.shape == merged.shape == (len(left),):
            raise ValueError("left, right and merged differ in shape")
        keys = left.astype(np.int64) << 32 | right
        ranks = np.arange(len(keys), dtype=np.int64)
        self.slots = _filled(keys, ranks << 32 | merged, keys.view(np.uint64) * FACTOR)

    @cached_property
    def pairs(self) -> dict[int, int]:
        """The same as a dict, for the definition."""
        taken = self.slots[self.slots[:, 0] != EMPTY]
        taken = taken[np.argsort(-taken[:, 1])]  # so that the first of equal pairs stays
        return dict(taken.tolist())


class TokenTable:
    """Tokens by text, with the scores that say which goes first.

    Parameters
    ----------
    vocab : mapping of str to int
        The tokens that text may become.
    scores : (n_vocab,) float32
        By id; a higher one goes first.

    Attributes
    ----------
    slots : (S, 2) int64, S a power of two
        Hash and number of an entry; `EMPTY` twice where nothing stands.
    text : (n,) uint32
        Code points of all entries, one after the other.
    ends : (n_entries + 1,) int64
        Entry e is ``text[ends[e]:ends[e + 1]]``.
    ids : (n_entries,) int32
    entry_scores : (n_entries,) float32
    longest : int
        Code points of the longest entry.
    """

    def __init__(self, vocab: Mapping[str, int], scores: npt.NDArray[np.float32]) -> None:
        self.vocab = vocab
        self.scores = scores
        lengths = np.array([0, *map(len, vocab)], np.int64)
        self.ends = np.cumsum(lengths)
        self.longest = int(lengths.max())
        self.text = code_points("".join(vocab))
        self.ids = np.fromiter(vocab.values(), np.int32, len(vocab))
        self.entry_scores = np.ascontiguousarray(scores[self.ids], np.float32)
        hashes = _hashes(self.text, self.ends[:-1], lengths[1:])
        entries = np.arange(len(vocab), dtype=np.int64)
        self.slots = _filled(hashes.view(np.int64), entries, hashes)


def code_points(text: str) -> U32:
    """Code points of a text, lone surrogates among them."""
    data = text.encode("utf-32-le", "surrogatepass")
    return np.frombuffer(data, "<u4").astype(np.uint32, copy=False)


def word_lengths(borders: I64) -> I64:
    """Lengths of words by their borders."""
    return borders[1:] - borders[:-1]


def check_words(name: str, text: npt.NDArray[Any], borders: I64) -> None:
    """Require borders that cut an array into words from end to end.

    Raises
    ------
    ArgumentError
        If `borders` has the wrong type or layout, or does not rise from 0 to the array's length.
    """
    checks.array("borders", borders, (None,), np.int64)
    n = len(text)
    if not len(borders) or borders[0] or borders[-1] != n or (word_lengths(borders) < 0).any():
        raise ArgumentError(f"borders do not rise from 0 to {n}, the length of {name}")


def _hashes(text: U32, starts: I64, lengths: I64) -> U64:
    """Hash entries by their first `HASHED` code points and their length."""
    hashes = lengths.astype(np.uint64)
    sizes = np.minimum(lengths, HASHED).astype(np.int8)
    order = np.argsort(-sizes, kind="stable")  # the longest first: those that go on are a prefix
    starts, sizes = starts[order], sizes[order]
    own = hashes[order]
    going_on = np.searchsorted(-sizes, -np.arange(HASHED), side="left")
    for i, n in enumerate(going_on):
        own[:n] = (own[:n] ^ text[starts[:n] + i]) * FACTOR
        own[:n] ^= own[:n] >> np.uint64(32)
    hashes[order] = own * FACTOR
    return hashes


def _filled(keys: I64, values: I64, hashes: U64) -> I64:
    """Slots with all entries; of equal keys the first stands first."""
    bits = max(4, int(2 * len(keys)).bit_length())
    slots = np.full((1 << bits, 2), EMPTY, np.int64)
    at = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    out = np.arange(len(keys), dtype=np.int64)
    taken = np.full(1 << bits, EMPTY, np.int64)
    while len(out):
        free = taken[at] == EMPTY
        # Back to front, so that of those that try one slot the first has it.
        taken[at[free][::-1]] = out[free][::-1]
        placed = taken[at] == out
        slots[at[placed], 0] = keys[out[placed]]
        slots[at[placed], 1] = values[out[placed]]
        out = out[~placed]
        at = (at[~placed] + 1) & (len(slots) - 1)
    return slots
