"""Pages of a model: taken, shared, given back, and never lost."""

import tracemalloc

import numpy as np
import pytest

from rml import memory_room
from rml._kernels.pages import PageTable
from rml.engine import pool as pool_module
from rml.engine.pool import PagePool
from rml.errors import OutOfMemory
from rml.llm.memory import LIST_BYTES_PER_TOKEN

PAGE_BYTES = 2 * 2 * 3 * 8 * 16 * 4  # keys and values, layers, heads, dimensions, positions, f32
PAGE_COST = PAGE_BYTES + 16 * LIST_BYTES_PER_TOKEN


def make(n_pages, monkeypatch=None, slab_pages=4):
    if monkeypatch:
        monkeypatch.setattr(pool_module, "SLAB_BYTES", slab_pages * PAGE_COST)
    return PagePool(2, 3, 8, "f32", budget=n_pages * PAGE_BYTES + 100)


def reserved(pool):
    return [i for i, slab in enumerate(pool.pages.slabs) if slab is not None]


def test_slabs_are_reserved_when_needed_and_given_back(monkeypatch):
    pool = make(10, monkeypatch)
    assert (pool.pages.page_bytes, pool.pages.n_pages, pool.nbytes) == (PAGE_BYTES, 10, 0)

    taken = [pool.take() for _ in range(9)]
    assert sorted(taken) == list(range(9))
    assert reserved(pool) == [0, 1, 2]
    assert pool.nbytes == 10 * PAGE_BYTES
    assert (pool.n_used, pool.n_free) == (9, 1)

    for page in taken[4:]:
        pool.release(page)
    assert reserved(pool) == [0, 1]  # one that is empty is kept
    for page in taken[:4]:
        pool.release(page)
    assert reserved(pool) == [0]
    assert pool.nbytes == 4 * PAGE_BYTES

    again = [pool.take() for _ in range(10)]
    assert sorted(again) == list(range(10))


def test_a_full_budget_says_what_to_do(monkeypatch):
    pool = make(5, monkeypatch)
    taken = [pool.take() for _ in range(5)]
    with pytest.raises(OutOfMemory, match=r"fill their 30,820 bytes \(80 positions\).*kv_memory"):
        pool.take()
    pool.release(taken[2])
    assert pool.take() == taken[2]


def test_a_machine_without_memory(monkeypatch):
    pool = make(100, monkeypatch)
    first = pool.take()
    room = memory_room.Room(3 * PAGE_BYTES, "a test")
    monkeypatch.setattr(pool_module, "available", lambda: room)
    rest = [pool.take() for _ in range(3)]
    with pytest.raises(OutOfMemory, match="not enough memory for more keys and values"):
        pool.take()
    assert reserved(pool) == [0]
    monkeypatch.undo()
    assert pool.take() not in {first, *rest}


def test_a_budget_below_a_page():
    with pytest.raises(OutOfMemory, match="a page of keys and values"):
        PagePool(2, 3, 8, "f32", budget=PAGE_BYTES - 1)


def test_shared_pages_are_free_after_their_last_user():
    pool = make(3)
    page = pool.take()
    pool.share(page)
    assert (pool.users(page), pool.is_shared(page)) == (2, True)
    pool.release(page)
    assert (pool.users(page), pool.is_shared(page), pool.n_used) == (1, False, 1)
    pool.release(page)
    assert (pool.users(page), pool.n_used) == (0, 0)


def test_a_duplicate_has_the_same_numbers():
    pool = make(3)
    page = pool.take()
    for array in pool.pages.page(page):
        array[...] = np.arange(array.size).reshape(array.shape)
    copy = pool.duplicate(page)
    assert copy != page
    for old, new in zip(pool.pages.page(page), pool.pages.page(copy), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("seed", range(5))
def test_random_use_is_that_of_a_plain_count(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    pool, users = make(37, monkeypatch), {}
    for _ in range(3000):
        choice = rng.integers(3) if users else 0
        if choice == 0 and len(users) < 37:
            page = pool.take()
            assert page not in users
            users[page] = 1
        elif users:
            page = int(rng.choice(list(users)))
            if choice == 1:
                pool.share(page)
                users[page] += 1
            else:
                pool.release(page)
                users[page] -= 1
                if not users[page]:
                    del users[page]
        assert all(pool.users(page) == n for page, n in users.items())
        assert (pool.n_used, pool.n_free) == (len(users), 37 - len(users))
        assert all(pool.pages.slabs[page // 4] is not None for page in users)
        empty = [i for i in reserved(pool) if not any(page // 4 == i for page in users)]
        assert len(empty) <= 1 + (not users)


def test_lists_grow_with_use_and_not_with_the_budget(monkeypatch):
    """A slab of two million pages, of which few are used, takes the memory of few."""
    monkeypatch.setattr(pool_module, "SLAB_BYTES", 1 << 32)
    monkeypatch.setattr(pool_module, "available", lambda: memory_room.Room(1 << 33, "a test"))
    tracemalloc.start()
    try:
        pool = PagePool(1, 1, 2, "f16", budget=1 << 40)
        assert len(pool.pages.slab_range(0)) == 1 << 21
        taken = [pool.take() for _ in range(1000)]
        for page in taken[::2]:
            pool.release(page)
        pool.recount([PageTable(taken[1::2])])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2_000_000
    assert taken == list(range(1000))
    assert sorted(pool.take() for _ in range(600)) == [*range(0, 1000, 2), *range(1000, 1100)]


def test_pages_that_came_back_are_taken_first(monkeypatch):
    pool = make(100, monkeypatch, slab_pages=16)
    taken = [pool.take() for _ in range(6)]
    for page in (1, 4):
        pool.release(page)

    assert [pool.take() for _ in range(3)] == [4, 1, 6]

    pool.recount([PageTable([0, 3, 5])])
    assert pool.n_used == 3
    assert [pool.take() for _ in range(5)] == [1, 2, 4, 6, 7]
    assert taken == [0, 1, 2, 3, 4, 5]


def test_memory_is_asked_for_the_lists_too(monkeypatch):
    pool = make(100, monkeypatch)
    for room, fits in ((4 * PAGE_COST - 1, False), (4 * PAGE_COST, True)):
        monkeypatch.setattr(pool_module, "available", lambda n=room: memory_room.Room(n, "a test"))
        if fits:
            pool.take()
        else:
            with pytest.raises(OutOfMemory, match=f"bytes needed: {4 * PAGE_COST:,}"):
                pool.take()
