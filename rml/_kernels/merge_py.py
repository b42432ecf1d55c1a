"""Merging of a text's smallest parts into tokens, the definition.

Words are merged one by one: as long as neighbours have an entry in the table, the pair that goes
first is replaced by one part (the leftmost of equal pairs first). The parts that are left are the
tokens. It takes O(n log n) steps for a word of n parts, and no recursion.

Sources: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016);
Kudo and Richardson, "SentencePiece" (2018), for the form with scores.
"""

from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.merge_tables import PairTable, TokenTable, check_words

__all__ = ["bpe_merge", "spm_merge"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


def bpe_merge(symbols: I32, borders: I64, table: PairTable, *, n_threads: int = 1) -> None:
    """Merge neighbours by rank until none has an entry, word by word.

    Parameters
    ----------
    symbols : (N,) int32
        Ids of the smallest parts of all words; a negative one is no part and leaves no trace.
        Becomes the ids that are left, in order, each word's at its beginning, and -1 behind them.
    borders : (W + 1,) int64
        Word w is ``symbols[borders[w]:borders[w + 1]]``.
    table : PairTable
        The merges.
    n_threads : int
        Threads that share the words; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or the borders do not fit.
    """
    checks.array("symbols", symbols, (None,), np.int32, writable=True)
    check_words("symbols", symbols, borders)
    known: dict[bytes, list[int]] = {}  # text repeats itself
    for start, end in pairwise(borders.tolist()):
        word = symbols[start:end]
        key = word.tobytes()
        ids = known.get(key)
        if ids is None:
            ids = known[key] = _merged([i for i in word.tolist() if i >= 0], table.pairs)
        word[: len(ids)] = ids
        word[len(ids) :] = -1


def _merged(ids: list[int], pairs: dict[int, int]) -> list[int]:
    """Ids of one word; `ids` is used up."""
    end = len(ids)
    # A candidate is (rank << 32 | merged, position): lowest rank first, then leftmost. It is stale
    # when one of its parts was merged meanwhile; the pair found at its position then differs.
    candidates = [
        (value, i)
        for i in range(end - 1)
        if (value := pairs.get(ids[i] << 32 | ids[i + 1])) is not None
    ]
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


def spm_merge(
    text: npt.NDArray[np.uint32],
    borders: I64,
    table: TokenTable,
    ids: I32,
    *,
    n_threads: int = 1,
) -> None:
    """Join neighbours by score until no two together are a token, word by word.

    Parameters
    ----------
    text : (N,) uint32
        Code points of all words.
    borders : (W + 1,) int64
        Word w is ``text[borders[w]:borders[w + 1]]``.
    table : TokenTable
        The tokens.
    ids : (N,) int32
        Result: where a piece starts its id, or ``-2 - c`` if it is a character c without a token;
        -1 elsewhere.
    n_threads : int
        Threads that share the words; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or the borders do not fit.
    """
    checks.array("text", text, (None,), np.uint32)
    checks.array("ids", ids, text.shape, np.int32, writable=True)
    check_words("text", text, borders)
    vocab = table.vocab
    known: dict[str, list[int]] = {}  # text repeats itself
    for start, end in pairwise(borders.tolist()):
        word = text[start:end].tobytes().decode("utf-32-le", "surrogatepass")
        found = known.get(word)
        if found is None:
            found = known[word] = [-1] * len(word)
            for low, high in _joined(word, table):
                token = vocab.get(word[low:high])
                found[low] = -2 - ord(word[low]) if token is None else token
        ids[start:end] = found


def _joined(text: str, table: TokenTable) -> list[tuple[int, int]]:
    """Borders of the pieces of one word; each is a token or a single character."""
    vocab, scores = table.vocab, table.scores
    n = len(text)
    ends = list(range(1, n + 1))  # of the piece that starts here; 0 where none starts any more
    starts = list(range(-1, n - 1))  # of the piece before the one that starts here
    # A candidate is (-score, start, middle, end): highest score first, then leftmost. It is stale
    # when one of its two pieces was joined meanwhile; its middle then is no border, or its end
    # differs.
    candidates: list[tuple[float, int, int, int]] = [
        (-float(scores[found]), i, i + 1, i + 2)
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
                heappush(candidates, (-float(scores[found]), start, end, after))
        before = starts[start]
        if before >= 0 and (found := vocab.get(text[before:end])) is not None:
            heappush(candidates, (-float(scores[found]), before, start, end))
    pieces = []
    start = 0
    while start < n:
        pieces.append((start, ends[start]))
        start = ends[start]
    return pieces
