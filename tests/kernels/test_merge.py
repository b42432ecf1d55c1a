"""Merging: the definitions against textbook loops, the twins against the definitions."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rml._kernels.merge_tables import HASHED, PairTable, TokenTable, code_points
from rml.errors import ArgumentError

# Hypothesis objects to fixtures; a namespace of functions has no state that could leak.
checked = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def borders_of(words):
    return np.cumsum([0, *map(len, words)], dtype=np.int64)


def bpe(kernels, words, merges, **options):
    """Ids of each word."""
    table = PairTable(*np.array(merges, np.int32).reshape(-1, 3).T)
    symbols = np.array([i for word in words for i in word], np.int32)
    borders = borders_of(words)
    kernels.bpe_merge(symbols, borders, table, **options)
    found = [symbols[start:end].tolist() for start, end in pairwise(borders)]
    for ids in found:
        assert ids == [i for i in ids if i >= 0] + [-1] * ids.count(-1)
    return [[i for i in ids if i >= 0] for ids in found]


def spm(kernels, words, pieces, **options):
    """What the kernel writes, by word."""
    table = TokenTable({p: i for i, p in enumerate(pieces)}, np.array([*pieces.values()], "f4"))
    text, borders = code_points("".join(words)), borders_of(words)
    ids = np.full(len(text), 99, np.int32)
    kernels.spm_merge(text, borders, table, ids, **options)
    return [ids[start:end].tolist() for start, end in pairwise(borders)]


def textbook_bpe(word, merges):
    """Look for the best pair, merge it, start again."""
    ranks = {}
    for rank, (left, right, merged) in enumerate(merges):
        ranks.setdefault((left, right), (rank, merged))
    ids = [i for i in word if i >= 0]
    while found := [(ranks[pair], i) for i, pair in enumerate(pairwise(ids)) if pair in ranks]:
        (_, merged), i = min(found)
        ids[i : i + 2] = [merged]
    return ids


def textbook_spm(word, pieces):
    """Look for the best pair, join it, start again; then write the pieces as the kernel does."""
    parts = list(word)
    while found := [
        (-pieces[left + right], i)
        for i, (left, right) in enumerate(pairwise(parts))
        if left + right in pieces
    ]:
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    number = {piece: i for i, piece in enumerate(pieces)}
    written = []
    for part in parts:
        written += [number.get(part, -2 - ord(part[0])), *[-1] * (len(part) - 1)]
    return written


@st.composite
def bpe_problems(draw):
    n = draw(st.integers(2, 5))
    pairs = draw(st.lists(st.tuples(st.integers(0, n + 8), st.integers(0, n + 8)), max_size=12))
    merges = [(left, right, n + i) for i, (left, right) in enumerate(pairs)]
    words = st.lists(st.lists(st.integers(-1, n - 1), max_size=80), max_size=4)
    return draw(words), merges


spm_problems = st.tuples(
    st.lists(st.text("ab▁🦙", max_size=80), max_size=4),
    st.dictionaries(st.text("ab▁🦙", min_size=1, max_size=4), st.integers(-3, 2), max_size=20),
)


@checked
@given(problem=bpe_problems(), n_threads=st.integers(1, 3))
def test_pairs_merge_as_in_the_textbook(kernels, problem, n_threads):
    words, merges = problem

    assert bpe(kernels, words, merges, n_threads=n_threads) == [
        textbook_bpe(word, merges) for word in words
    ]


@checked
@given(problem=spm_problems, n_threads=st.integers(1, 3))
def test_texts_join_as_in_the_textbook(kernels, problem, n_threads):
    words, pieces = problem

    assert spm(kernels, words, pieces, n_threads=n_threads) == [
        textbook_spm(word, pieces) for word in words
    ]


def test_twins_give_what_the_definitions_give(twins, definitions):
    rng = np.random.default_rng(4)
    merges = [(*rng.integers(0, 40 + i, 2), 40 + i) for i in range(3000)]
    words = [rng.integers(0, 40, n).tolist() for n in (0, 1, 2, 31, 32, 33, 500, 3000)]
    letters = np.array(list("abcdefgh▁é漢"))
    pieces = {"".join(rng.choice(letters, rng.integers(1, 5))): -float(i) for i in range(3000)}
    texts = ["".join(rng.choice(letters, n)) for n in (0, 1, 2, 31, 32, 33, 500, 3000)]

    assert bpe(twins, words, merges, n_threads=2) == bpe(definitions, words, merges)
    assert spm(twins, texts, pieces, n_threads=2) == spm(definitions, texts, pieces)


@pytest.mark.parametrize("n", [43_000, 131_072])
def test_a_long_word_takes_near_linear_time(kernels, n):
    merges = [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    pieces = {"a" * size: float(size) for size in (1, 2, 4, 8)}
    began = time.thread_time()

    assert bpe(kernels, [[0] * n], merges) == [[3] * (n // 8)]
    assert spm(kernels, ["a" * n], pieces) == [[3, *[-1] * 7] * (n // 8)]
    assert time.thread_time() - began < 4


def test_long_tokens_that_begin_alike(kernels):
    stem = "x" * (HASHED + 8)
    pieces = {stem[: n + 1]: -float(n) for n in range(len(stem))}
    pieces |= {stem + end: 0.0 for end in "abc"}

    assert [w[0] for w in spm(kernels, [stem + end for end in "abcd"], pieces)] == [
        textbook_spm(stem + end, pieces)[0] for end in "abcd"
    ]


def test_scores_order_as_numbers(kernels):
    for low, high in [(-0.5, 0.25), (-2.0, -1.0), (1.0, 3e30), (-3e30, -0.0), (-1e-40, 0.0)]:
        pieces = {"ab": low, "bc": high}
        assert spm(kernels, ["abc"], pieces) == [[-2 - ord("a"), 1, -1]]
    assert spm(kernels, ["abc"], {"ab": 0.0, "bc": -0.0}) == [[0, -1, -2 - ord("c")]]


def test_a_full_vocabulary_finds_every_entry():
    n = 300_000
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 2**31 - 1, (2, n), dtype=np.int32)
    began = time.thread_time()
    table = PairTable(left, right, np.arange(n, dtype=np.int32))
    assert time.thread_time() - began < 1

    keys = (left.astype(np.int64) << 32 | right).tolist()
    assert [table.pairs[key] & 0xFFFFFFFF for key in keys] == list(range(n))


def test_table_refuses_columns_of_different_length():
    a, b = np.zeros(2, np.int32), np.zeros(3, np.int32)

    with pytest.raises(ValueError, match="shape"):
        PairTable(a, a, b)


@pytest.mark.parametrize("borders", [[], [0], [0, 2], [1, 3], [0, 2, 1, 3], [0, 4]])
def test_borders_have_to_fit(kernels, borders):
    borders = np.array(borders, np.int64)
    empty = np.zeros(0, np.int32)
    text, symbols = np.full(3, 97, np.uint32), np.zeros(3, np.int32)

    with pytest.raises(ArgumentError, match="borders"):
        kernels.bpe_merge(symbols, borders, PairTable(empty, empty, empty))
    with pytest.raises(ArgumentError, match="borders"):
        kernels.spm_merge(text, borders, TokenTable({}, np.zeros(0, np.float32)), symbols)
    assert not symbols.any()


def test_arrays_have_to_fit(kernels):
    empty, borders = np.zeros(0, np.int32), np.array([0, 3])
    pairs, tokens = PairTable(empty, empty, empty), TokenTable({}, np.zeros(0, np.float32))

    with pytest.raises(ArgumentError, match="symbols is int64"):
        kernels.bpe_merge(np.zeros(3, np.int64), borders, pairs)
    with pytest.raises(ArgumentError, match="text is int32"):
        kernels.spm_merge(np.zeros(3, np.int32), borders, tokens, np.zeros(3, np.int32))
    with pytest.raises(ArgumentError, match="ids has shape"):
        kernels.spm_merge(np.zeros(3, np.uint32), borders, tokens, np.zeros(2, np.int32))
