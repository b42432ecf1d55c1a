"""Sequences: their pages, what forks share, and what an interrupt leaves."""

import gc
from contextlib import suppress

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.pages import KV_TYPES
from rml._kernels.step import Step
from rml.engine.pool import PagePool
from rml.engine.sequence import SequenceStore
from rml.errors import ArgumentError, OutOfMemory

LAYERS, HEADS, D = 2, 2, 8


@pytest.fixture
def store():
    return make_store()


def make_store(n_pages=40, kv_type="f32"):
    page_bytes = PagePool(LAYERS, HEADS, D, kv_type, budget=1 << 20).pages.page_bytes
    return SequenceStore(
        [PagePool(LAYERS, HEADS, D, kv_type, budget=n_pages * page_bytes)], evaluator=None
    )


def append(sequence, ids):
    """What a step does: keys and values that tell tokens apart, at every layer."""
    sequence.reserve(len(ids))
    step = Step(max(1, len(ids)))
    if ids:
        step.add(ids, len(sequence), sequence.tables)
    k = np.float32(ids)[:, None, None] + np.zeros((1, HEADS, D), np.float32)
    for layer in range(LAYERS):
        _kernels.store_kv(k, -k, sequence.store.pools[0].pages, step, layer=layer)
    sequence.commit(ids)


def read(sequence):
    """Attention of a window of one gives back the values, as ids."""
    n = len(sequence)
    q = np.ones((n, HEADS, D), np.float32)
    out, step = np.zeros_like(q), Step(max(1, n))
    if n:
        step.add([0] * n, 0, sequence.tables)
    pages = sequence.store.pools[0].pages
    _kernels.attend(q, pages, step, out, layer=1, scale=1.0, window=1)
    return [round(-float(x)) for x in out[:, 0, 0]]


def counts(store):
    """Users of every page, counted from the tables."""
    users = {}
    for sequence in store.living:
        for entry in range(len(sequence.tables[0])):
            page = sequence.tables[0][entry]
            users[page] = users.get(page, 0) + 1
    return users


def check(store):
    pool = store.pools[0]
    assert pool.n_used == len(counts(store))
    assert all(pool.users(page) == n for page, n in counts(store).items())


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_what_is_written_is_read(kv_type):
    store = make_store(kv_type=kv_type)
    sequence = store.new()
    for n in (1, 14, 1, 1, 30, 17):
        append(sequence, list(range(len(sequence) + 1, len(sequence) + 1 + n)))
    assert sequence.ids == list(range(1, 65))
    assert read(sequence) == sequence.ids
    assert sequence.nbytes == 64 * store.bytes_per_token
    check(store)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 39, 40])
def test_truncate_then_write_again(store, length):
    sequence = store.new()
    append(sequence, list(range(1, 41)))
    sequence.truncate(length)
    assert (len(sequence), read(sequence)) == (length, list(range(1, length + 1)))
    assert len(sequence.tables[0]) == -(-length // 16)
    append(sequence, [7] * 20)
    assert read(sequence) == [*range(1, length + 1), *[7] * 20]
    check(store)


def test_truncate_out_of_range(store):
    sequence = store.new()
    append(sequence, [1, 2, 3])
    for length in (-1, 4):
        with pytest.raises(ArgumentError, match=f"length is {length}"):
            sequence.truncate(length)
    assert read(sequence) == [1, 2, 3]


def test_reserving_is_not_using(store):
    sequence = store.new()
    sequence.reserve(40)
    assert (len(sequence), store.pools[0].n_used) == (0, 3)
    sequence.settle()
    assert store.pools[0].n_used == 0


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("common", [0, 1, 16, 20, 32])
def test_forks_share_what_they_had_and_nothing_else(kv_type, common):
    store = make_store(kv_type=kv_type)
    first = store.new()
    append(first, list(range(1, common + 1)))
    before = store.pools[0].n_used
    forks = [first.fork(), first.fork()]
    assert store.pools[0].n_used == before

    for i, sequence in enumerate((first, *forks)):
        append(sequence, [50 + i] * 20)
    for i, sequence in enumerate((first, *forks)):
        assert read(sequence) == [*range(1, common + 1), *[50 + i] * 20]
    whole = common // 16
    tables = [[s.tables[0][e] for e in range(len(s.tables[0]))] for s in (first, *forks)]
    assert all(table[:whole] == tables[0][:whole] for table in tables)
    assert len({page for table in tables for page in table[whole:]}) == 3 * (len(tables[0]) - whole)
    check(store)

    first.release()
    assert [read(fork)[:common] for fork in forks] == [list(range(1, common + 1))] * 2
    check(store)


def test_a_sequence_that_nobody_holds_gives_its_pages_back(store):
    sequence = store.new()
    append(sequence, [1] * 50)
    other = sequence.fork()
    append(other, [2] * 3)
    del sequence
    gc.collect()
    last = store.new()  # what was left is found when somebody takes pages
    append(last, [3])
    assert read(other) == [*[1] * 50, 2, 2, 2]
    check(store)
    del other, last
    gc.collect()
    store.collect()
    assert store.pools[0].n_used == 0


def test_a_full_pool_changes_nothing():
    store = make_store(n_pages=4)
    first, second = store.new(), store.new()
    append(first, [1] * 40)
    append(second, [2] * 10)
    with pytest.raises(OutOfMemory, match="the largest context that fits is 16 tokens") as e:
        second.reserve(10)
    assert e.value.largest_context == 16
    assert (read(first), read(second)) == ([1] * 40, [2] * 10)
    check(store)
    first.truncate(20)
    append(second, [3] * 10)
    assert read(second) == [*[2] * 10, *[3] * 10]


@pytest.mark.parametrize("method", ["take", "share", "release", "duplicate"])
def test_an_interrupt_in_the_middle_of_an_entry(store, monkeypatch, method):
    """Ctrl-C after the pool has noted something and before the sequence has."""
    sequence = store.new()
    append(sequence, [1] * 20)
    fork = sequence.fork()
    pool = store.pools[0]
    done = getattr(pool, method)

    def interrupted(*args):
        done(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, method, interrupted)
        for use in (sequence.fork, lambda: fork.reserve(30)):
            with suppress(KeyboardInterrupt):
                use()
    gc.collect()
    store.collect()
    store.recount()
    fork.settle()
    assert (read(sequence), read(fork)) == ([1] * 20, [1] * 20)
    check(store)
    append(fork, [2] * 30)
    assert (read(sequence), read(fork)) == ([1] * 20, [*[1] * 20, *[2] * 30])
    check(store)


@pytest.mark.parametrize("seed", range(4))
def test_random_use(seed):
    rng = np.random.default_rng(seed)
    store, texts = make_store(60), {}
    for _ in range(600):
        sequences = list(texts)
        choice = rng.integers(5)
        if not sequences or (choice == 0 and len(sequences) < 6):
            sequence = store.new()
            texts[sequence] = []
            continue
        sequence = sequences[rng.integers(len(sequences))]
        if choice == 1 and len(sequences) < 6:
            texts[sequence.fork()] = texts[sequence].copy()
        elif choice == 2:
            length = int(rng.integers(len(sequence) + 1))
            sequence.truncate(length)
            del texts[sequence][length:]
        elif choice == 3:
            del texts[sequence]
        elif len(sequence) < 80:
            ids = rng.integers(1, 90, rng.integers(1, 30)).tolist()
            append(sequence, ids)
            texts[sequence] += ids
        del sequence, sequences
        store.collect()
        check(store)
    for sequence, ids in texts.items():
        assert read(sequence) == sequence.ids == ids
