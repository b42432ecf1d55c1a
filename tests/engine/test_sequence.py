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


def make_store(n_pages=40, kv_type="f32", n_kept=0, **kwargs):
    page_bytes = PagePool(LAYERS, HEADS, D, kv_type, budget=1 << 20).pages.page_bytes
    return SequenceStore(
        [PagePool(LAYERS, HEADS, D, kv_type, budget=n_pages * page_bytes)],
        evaluator=None,
        kept_bytes=n_kept * page_bytes,
        **kwargs,
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
    """Every page and node has as many users as there are, and leads where it says."""
    store.collect()
    pool, users = store.pools[0], counts(store)
    assert pool.n_used == len(users)
    kept = store.prefixes.pages(0)
    assert (pool.n_kept, pool.n_idle) == (len(kept), len(set(kept) - set(users)))
    for page in kept:
        users[page] = users.get(page, 0) + 1
    assert all(pool.users(page) == n for page, n in users.items())
    for node in store.prefixes.nodes():
        holders = sum(sequence.holding.node is node for sequence in store.living)
        assert node.n_holders == holders + len(node.children)
    for sequence in store.living:
        node = sequence.holding.node
        assert node.depth <= len(sequence) // 16
        while node.parent is not None:
            assert node.ids == tuple(sequence.ids[16 * node.depth - 16 : 16 * node.depth])
            assert node.pages[0] == sequence.tables[0][node.depth - 1]
            node = node.parent


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


# ---- common beginnings ----

TEXT = list(range(1, 60))


def went_through(store, ids):
    """A sequence that had these tokens, and is gone."""
    sequence = store.new()
    append(sequence, ids)
    sequence.release()


@pytest.mark.parametrize("held", [0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 59])
def test_whole_pages_are_found_again(held):
    store = make_store(n_kept=40)
    went_through(store, TEXT)
    assert (store.pools[0].n_used, store.pools[0].n_idle) == (0, 3)
    sequence = store.new()
    append(sequence, TEXT[:held])
    n = sequence.adopt(TEXT[held:])
    assert n == max(0, 48 - held)
    assert sequence.ids == TEXT[: held + n]
    append(sequence, [77] * 20)
    assert read(sequence) == [*TEXT[: held + n], *[77] * 20]
    check(store)


def test_only_what_is_equal_from_the_first_token_on_is_found():
    store = make_store(n_kept=40)
    went_through(store, TEXT)
    for ids, n in (
        (TEXT[:15], 0),
        ([9, *TEXT[1:]], 0),
        ([*TEXT[:20], 9, *TEXT[21:]], 16),
        (TEXT[16:], 0),
        ([*TEXT[:48], *TEXT], 48),
    ):
        sequence = store.new()
        assert sequence.adopt(ids) == n
        assert read(sequence) == ids[:n]
    check(store)


def test_a_page_that_was_written_behind_the_beginning_is_ones_own():
    store = make_store(n_kept=40)
    went_through(store, TEXT)
    first, second = store.new(), store.new()
    for sequence in (first, second):
        assert sequence.adopt(TEXT) == 48
    first.truncate(20)
    append(first, [7] * 30)
    assert read(second) == TEXT[:48]
    assert read(first) == [*TEXT[:20], *[7] * 30]
    first.truncate(20)
    append(first, TEXT[20:32])  # the page that was there before is shared again
    assert first.tables[0][1] == second.tables[0][1]
    check(store)


def test_pages_that_two_have_computed_become_one():
    store = make_store()
    first, second = store.new(), store.new()
    append(first, TEXT[:40])
    append(second, TEXT[:40])
    assert [first.tables[0][i] == second.tables[0][i] for i in range(3)] == [True, True, False]
    assert (read(first), read(second)) == (TEXT[:40], TEXT[:40])
    check(store)


def test_what_was_not_used_for_the_longest_time_goes_first():
    store = make_store(n_pages=9, n_kept=9)
    for ids in ([1] * 48, [2] * 48, [3] * 33):
        went_through(store, ids)
    assert store.pools[0].n_idle == 8
    store.new().adopt([1] * 49)  # is used again
    sequence = store.new()
    append(sequence, [9] * 32)  # one page is free; the end of [2] goes
    assert store.new().adopt([2] * 49) == 32
    assert store.new().adopt([1] * 49) == 48
    check(store)
    append(sequence, [9] * 100)  # 9 pages: all of them
    assert store.pools[0].n_idle == 0
    with pytest.raises(OutOfMemory):
        sequence.reserve(16)
    assert store.prefixes.kept_bytes == 0
    check(store)


def test_no_more_is_kept_than_may_be():
    store = make_store(n_kept=4)
    for i in range(1, 9):
        went_through(store, [i] * 40)
        assert store.pools[0].n_idle <= 4
        check(store)
    found = [store.new().adopt([i] * 40) for i in range(1, 9)]
    assert found == [0] * 6 + [32, 32]


def test_who_shares_nothing_finds_nothing_and_leaves_nothing():
    store = make_store(n_kept=40)
    sequence = store.new(shares=False)
    append(sequence, TEXT)
    sequence.release()
    assert store.pools[0].n_idle == 0
    went_through(store, TEXT)
    assert store.new(shares=False).adopt(TEXT) == 0
    off = make_store(n_kept=40, prefix_cache=False)
    went_through(off, TEXT)
    assert off.pools[0].n_idle == 0


def test_another_salt_is_another_beginning():
    store = make_store(n_kept=40, salt="one")
    went_through(store, TEXT)
    store.salt = "other"
    assert store.new().adopt(TEXT) == 0
    store.salt = "one"
    assert store.new().adopt(TEXT) == 48


def test_a_sequence_that_gives_way_keeps_its_tokens():
    store = make_store(n_pages=5, n_kept=5)
    sequence = store.new()
    append(sequence, TEXT)
    sequence.give_way()
    assert (len(sequence), sequence.length, sequence.owed) == (0, 59, TEXT)
    assert sequence.tokens == TEXT
    assert store.pools[0].n_used == 0
    fork = sequence.fork()
    assert fork.adopt(fork.owed) == 48
    append(fork, fork.owed)
    assert (read(fork), fork.owed, fork.length) == (TEXT, [], 59)
    sequence.truncate(20)
    assert (sequence.owed, sequence.tokens, sequence.length) == (TEXT[:20], TEXT[:20], 20)
    append(sequence, TEXT[:5])
    sequence.truncate(10)
    assert (sequence.ids, sequence.owed) == (TEXT[:5], TEXT[5:10])
    sequence.truncate(3)
    assert (sequence.ids, sequence.owed, sequence.length) == (TEXT[:3], [], 3)
    with pytest.raises(ArgumentError, match="0 to 3 positions"):
        sequence.truncate(4)
    check(store)


@pytest.mark.parametrize("method", ["enter", "hold", "let_go", "give_up"])
@pytest.mark.parametrize("before", [False, True])
def test_an_interrupt_in_the_middle_of_the_tree(monkeypatch, method, before):
    store = make_store(n_pages=14, n_kept=2)
    went_through(store, TEXT)
    sequence, fork = store.new(), store.new()
    append(sequence, TEXT[:20])
    done = getattr(store.prefixes, method)

    def interrupted(*args):
        if not before:
            done(*args)
        raise KeyboardInterrupt

    def grow(ids):
        append(fork, ids)

    for use in (
        lambda: fork.adopt(TEXT),
        lambda: grow(TEXT[:17]),
        lambda: fork.truncate(0),
        lambda: grow([9] * 40),
        fork.give_way,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(store.prefixes, method, interrupted)
            if method == "give_up":
                patch.setattr(store.pools[0], "give_up", interrupted)
            with suppress(KeyboardInterrupt):
                use()
        fork.settle()
        assert read(sequence) == TEXT[:20]
        assert read(fork) == fork.ids
        check(store)
    sequence.release()
    fork.release()
    assert store.pools[0].n_used == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_use_of_beginnings(seed):
    rng = np.random.default_rng(seed)
    store, texts = make_store(40, n_kept=[0, 3, 40][seed % 3]), {}
    n_found = 0
    for _ in range(500):
        sequences = list(texts)
        choice = rng.integers(6)
        if not sequences or (choice == 0 and len(sequences) < 6):
            texts[store.new(shares=bool(rng.integers(4)))] = []
            continue
        sequence = sequences[rng.integers(len(sequences))]
        # Two beginnings, so that most are met again.
        more = [int(1 + i // 40) for i in range(len(sequence), 80)]
        if choice == 1 and len(sequences) < 6:
            texts[sequence.fork()] = texts[sequence].copy()
        elif choice == 2:
            length = int(rng.integers(sequence.length + 1))
            sequence.truncate(length)
            del texts[sequence][length:]
        elif choice == 3:
            del texts[sequence]
        elif choice == 4 and len(more) and not sequence.owed:
            n = sequence.adopt(more)
            n_found += n
            texts[sequence] += more[:n]
        elif choice == 5 and rng.integers(3) == 0:
            sequence.give_way()
        elif sequence.owed:
            sequence.adopt(sequence.owed)
            append(sequence, sequence.owed)
        elif len(sequence) < 80:
            ids = more[: rng.integers(1, 40)] if rng.integers(8) else [9] * 5
            append(sequence, ids)
            texts[sequence] += ids
        del sequence, sequences
        store.collect()
        check(store)
    assert n_found
    for sequence, ids in texts.items():
        assert sequence.tokens == ids
        assert read(sequence) == sequence.ids
